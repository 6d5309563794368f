//! Blocks of transformers on every device: against the same made of candle's own operations, and their gradients against
//! candle's autograd.

#[macro_use]
mod devices;

use candle_core::{DType, Device, Module, Result, Tensor, Var, D};
use candle_sgemm::blocks::{
    argmax, attend, explain_attention, softmax, Attention, EncoderLayer, FeedForward, KvCache, LayerNorm, Rotation,
};
use candle_sgemm::{matmul, Activation, GatedMlp, Gemm, Linear, Mlp, Precision};
use devices::{random, tolerance, worst};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

on_every_device!(
    products_side_by_side_are_products_moved,
    drawn_products_side_by_side_are_products_moved,
    gradients_of_products_side_by_side_are_those_of_products_moved,
    layers_side_by_side_give_their_results_side_by_side,
    attention_is_candles,
    attention_in_sixteen_bits_is_near,
    attention_to_another_sequence_is_candles,
    drawn_attention_is_that_of_fp64,
    attention_of_rows_that_are_masked_whole_is_candles,
    attention_is_one_kernel_where_that_is_faster,
    gradients_of_attention_are_candles,
    drawn_steps_are_those_of_fp64,
    a_cache_says_what_does_not_fit,
    drawn_norms_are_those_of_fp64,
    drawn_softmaxes_are_those_of_fp64,
    drawn_places_are_candles_on_the_cpu,
    what_no_kernel_looks_through_is_candles,
    gradients_of_norms_are_those_of_candles_operations,
    views_and_long_rows_have_norms_too,
    layers_behind_norms_are_those_of_fp64,
    norms_and_gates_are_inside_a_named_kernel,
    gates_of_many_rows_are_inside_a_named_kernel,
    gradients_flow_through_layers_behind_norms,
    encoder_layers_are_candles,
    a_stack_adds_its_residual,
    errors_say_what_does_not_fit,
);

/// The product with matrices of the last batch dimension moved side by side.
fn moved(product: &Tensor) -> Result<Tensor> {
    let rank = product.rank();
    let rows = product.transpose(rank - 3, rank - 2)?;
    rows.contiguous()?.flatten_from(D::Minus2)
}

fn products_side_by_side_are_products_moved(device: &Device) -> Result<()> {
    let cases: [(&[usize], &[usize]); 9] = [
        (&[3, 5, 8], &[3, 8, 4]),
        (&[2, 3, 5, 8], &[2, 3, 8, 4]),
        (&[2, 3, 33, 40], &[2, 3, 40, 64]),
        (&[2, 12, 128, 128], &[2, 12, 128, 64]),
        (&[2, 3, 1, 8], &[2, 3, 8, 4]),
        (&[2, 3, 5, 8], &[2, 3, 8, 1]),
        (&[2, 3, 5, 7], &[3, 7, 3]),
        (&[4, 5, 8], &[8, 6]),
        (&[2, 1, 2, 1, 3, 2, 5, 8], &[2, 2, 1, 3, 1, 2, 8, 4]),
    ];
    for (a, b) in cases {
        for dtype in [DType::F32, DType::F16, DType::F64] {
            let (a, b) = (random(a, device).to_dtype(dtype)?, random(b, device).to_dtype(dtype)?);
            let product = matmul(&a, &b)?;
            let c = random(&product.dims()[1..], device).to_dtype(dtype)?;
            let k = a.dim(D::Minus1)?;
            let limit = match dtype {
                DType::F16 => 2e-2,
                _ => tolerance(k) * (k as f64).sqrt(),
            };
            for gemm in [Gemm::new(), Gemm::new().alpha(0.5).c(&c, 2.0)] {
                let (ours, expected) = (gemm.matmul_side_by_side(&a, &b)?, moved(&gemm.matmul(&a, &b)?)?);
                assert!(ours.is_contiguous());
                let error = worst(&ours, &expected)?;
                assert!(error <= limit, "{:?}·{:?} {dtype:?}: {error:e}", a.dims(), b.dims());
            }
        }
    }
    // Operands that are views, as heads are.
    let all = random(&[2, 9, 3, 4, 16], device);
    let part = |i: usize| all.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
    let weights = matmul(&part(0)?, &part(1)?.t()?)?;
    let error = worst(
        &Gemm::new().matmul_side_by_side(&weights, &part(2)?)?,
        &moved(&matmul(&weights, &part(2)?)?)?,
    )?;
    assert!(error <= 100.0 * tolerance(16), "{error:e}");
    // Nothing at all.
    let empty = Gemm::new().matmul_side_by_side(&random(&[2, 3, 0, 5], device), &random(&[2, 3, 5, 4], device))?;
    assert_eq!(empty.dims(), [2, 0, 12]);
    Ok(())
}

/// A tensor of this shape, dense or a part of a larger one, with its last two dimensions stored in either order.
fn drawn(rng: &mut StdRng, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let mut stored = shape.to_vec();
    let rank = stored.len();
    let transposed = rng.random::<bool>();
    if transposed {
        stored.swap(rank - 2, rank - 1);
    }
    let wanted = stored.clone();
    let narrowed = rng.random_range(0..=rank);
    let start = rng.random_range(0..4);
    if narrowed < rank {
        stored[narrowed] += start + rng.random_range(0..4);
    }
    let mut tensor = random(&stored, device).to_dtype(dtype)?;
    if narrowed < rank {
        tensor = tensor.narrow(narrowed, start, wanted[narrowed])?;
    }
    match transposed {
        true => tensor.transpose(rank - 2, rank - 1),
        false => Ok(tensor),
    }
}

/// Every small size, some larger ones, operands as views of any kind and alignment, all types.
fn drawn_products_side_by_side_are_products_moved(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..300 {
        let size = |rng: &mut StdRng| match rng.random_range(0..8) {
            0 => rng.random_range(10..80),
            _ => rng.random_range(1..10),
        };
        let [m, n, k] = [size(&mut rng), size(&mut rng), size(&mut rng)];
        let batch: Vec<usize> = (0..rng.random_range(1..4)).map(|_| rng.random_range(1..5)).collect();
        let dtype = [DType::F32, DType::F32, DType::F16, DType::BF16][rng.random_range(0..4)];
        let a = drawn(&mut rng, &[&batch[..], &[m, k]].concat(), dtype, device)?;
        let b = drawn(&mut rng, &[&batch[..], &[k, n]].concat(), dtype, device)?;
        let ours = Gemm::new().matmul_side_by_side(&a, &b)?;
        let expected = moved(&matmul(&a, &b)?)?;
        let limit = match dtype {
            DType::F32 => tolerance(k) * (k as f64).sqrt(),
            // One rounding each of sums that differ in their last bits: an ulp of the largest.
            dtype => {
                let ulp = if dtype == DType::F16 { 1.0 / 1024.0 } else { 1.0 / 128.0 };
                ulp * worst(&expected, &expected.zeros_like()?)?.max(1.0)
            }
        };
        let error = worst(&ours, &expected)?;
        assert!(
            ours.is_contiguous() && error <= limit,
            "{:?}·{:?} {dtype:?}: {error:e}, not at most {limit:e}",
            a.layout(),
            b.layout()
        );
    }
    Ok(())
}

fn gradients_of_products_side_by_side_are_those_of_products_moved(device: &Device) -> Result<()> {
    let var = |shape: &[usize]| Var::from_tensor(&random(shape, device));
    let (a, b, c) = (var(&[2, 3, 5, 7])?, var(&[3, 7, 4])?, var(&[3, 1, 4])?);
    let scales = random(&[2, 5, 12], device);
    let gradients = |y: Tensor| (y.sqr()? * &scales)?.sum_all()?.backward();
    let gemm = Gemm::new().alpha(0.5).c(&c, 2.0);
    let ours = gradients(gemm.matmul_side_by_side(&a, &b)?)?;
    let product = (a.broadcast_matmul(&b)? * 0.5)?.broadcast_add(&(c.as_tensor() * 2.0)?)?;
    let candle = gradients(moved(&product)?)?;
    for (var, what) in [(&a, "a"), (&b, "b"), (&c, "C")] {
        let error = worst(ours.get(var).expect(what), candle.get(var).expect(what))?;
        assert!(error < 2e-4, "gradient of {what}: {error:e}");
    }
    Ok(())
}

fn layer(out: usize, inputs: usize, bias: bool, device: &Device) -> Result<Linear> {
    let weight = (random(&[out, inputs], device) / (inputs as f64).sqrt())?;
    Ok(Linear::new(weight, bias.then(|| random(&[out], device))))
}

fn layers_side_by_side_give_their_results_side_by_side(device: &Device) -> Result<()> {
    let x = random(&[2, 5, 8], device);
    for biases in [[true, true, true], [true, false, true], [false, false, false]] {
        let layers = [
            layer(6, 8, biases[0], device)?,
            layer(3, 8, biases[1], device)?,
            layer(7, 8, biases[2], device)?,
        ];
        let layers = layers.map(|layer| layer.with_activation(Activation::Silu));
        let each = layers.iter().map(|layer| layer.forward(&x));
        let expected = Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 2)?;
        let one = Linear::side_by_side(&layers)?;
        assert_eq!(one.bias().is_some(), biases.contains(&true));
        assert!(worst(&one.forward(&x)?, &expected)? < tolerance(8));
    }
    Ok(())
}

/// Four projections of a width, the second without a bias.
fn projections(width: usize, device: &Device) -> Result<[Linear; 4]> {
    Ok([
        layer(width, width, true, device)?,
        layer(width, width, false, device)?,
        layer(width, width, true, device)?,
        layer(width, width, true, device)?,
    ])
}

fn stock(layer: &Linear) -> candle_nn::Linear {
    candle_nn::Linear::new(layer.weight().clone(), layer.bias().cloned())
}

/// Attention as candle's models compute it.
fn candles_attention(layers: &[Linear; 4], heads: usize, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (batch, length, width) = x.dims3()?;
    let project = |layer: &Linear| -> Result<Tensor> {
        let y = stock(layer)
            .forward(x)?
            .reshape((batch, length, heads, width / heads))?;
        y.transpose(1, 2)?.contiguous()
    };
    let [query, key, value, output] = layers;
    let (query, key, value) = (project(query)?, project(key)?, project(value)?);
    let mut scores = (query.matmul(&key.t()?)? / ((width / heads) as f64).sqrt())?;
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    let context = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&value)?;
    stock(output).forward(&context.transpose(1, 2)?.contiguous()?.flatten_from(2)?)
}

fn attention(layers: &[Linear; 4], heads: usize) -> Result<Attention> {
    let [query, key, value, output] = layers.clone();
    Attention::new(query, key, value, output, heads)
}

/// Masks of a batch of two texts of ten, of which the second has six tokens: one for all heads and queries, and one for each.
fn masks(heads: usize, device: &Device) -> Result<[Tensor; 2]> {
    let counts: Vec<f32> = (0..20).map(|i| if i < 16 { 0.0 } else { -1e4 }).collect();
    let of_keys = Tensor::from_vec(counts, (2, 1, 1, 10), device)?;
    let causal: Vec<f32> = (0..100).map(|i| if i % 10 > i / 10 { -1e4 } else { 0.0 }).collect();
    let causal = Tensor::from_vec(causal, (1, 1, 10, 10), device)?;
    let slopes = Tensor::arange(0f32, heads as f32, device)?.reshape((1, heads, 1, 1))?;
    Ok([of_keys, causal.broadcast_add(&slopes)?])
}

fn attention_is_candles(device: &Device) -> Result<()> {
    let (width, heads) = (48, 4);
    let layers = projections(width, device)?;
    let attention = attention(&layers, heads)?;
    assert_eq!((attention.heads(), attention.scale()), (heads, 1.0 / 12f64.sqrt()));
    let x = random(&[2, 10, width], device);
    let [of_keys, of_all] = masks(heads, device)?;
    for mask in [None, Some(&of_keys), Some(&of_all)] {
        let expected = candles_attention(&layers, heads, &x, mask)?;
        for precision in [Precision::Fp32, Precision::Fp32Strict] {
            let gemm = Gemm::new().precision(precision);
            let attention = attention.clone().with_gemm(&gemm).prepare()?;
            let error = worst(&attention.forward_with(&x, mask, None)?, &expected)?;
            assert!(error < tolerance(width), "{error:e}");
            let residual = random(&[10, width], device);
            let with = attention.forward_with(&x, mask, Some(&residual))?;
            assert!(worst(&with, &expected.broadcast_add(&residual)?)? < tolerance(width));
        }
        if mask.is_none() {
            assert!(worst(&attention.forward(&x)?, &expected)? < tolerance(width));
        }
    }
    // α and C of the settings are not attention's.
    let settings = Gemm::new().alpha(7.0).c(&x, 3.0);
    let [query, key, value, _] = [0, 1, 2, 3].map(|i| random(&[2, heads, 5, 8 + i / 4], device));
    let context = attend(&settings, &query, &key, &value, 0.3, None)?;
    assert!(worst(&context, &attend(&Gemm::new(), &query, &key, &value, 0.3, None)?)? < tolerance(8));
    let same = attention.clone().with_gemm(&settings);
    assert!(worst(&same.forward(&x)?, &attention.forward(&x)?)? < tolerance(width));
    // Another scale is another result.
    let other = attention.clone().with_scale(1.0);
    assert!(worst(&other.forward(&x)?, &attention.forward(&x)?)? > 1e-3);
    for nothing in [[0, 10, width], [2, 0, width]] {
        let x = random(&nothing, device);
        assert_eq!(attention.forward_with(&x, None, Some(&x))?.dims(), nothing);
    }
    Ok(())
}

fn attention_in_sixteen_bits_is_near(device: &Device) -> Result<()> {
    let (width, heads) = (48, 4);
    let layers = projections(width, device)?;
    let x = random(&[2, 10, width], device);
    let exact = attention(&layers, heads)?.forward(&x)?;
    for (dtype, limit) in [(DType::F16, 0.02), (DType::BF16, 0.15)] {
        let to = |layer: &Linear| -> Result<Linear> {
            let bias = layer.bias().map(|bias| bias.to_dtype(dtype)).transpose()?;
            Ok(Linear::new(layer.weight().to_dtype(dtype)?, bias))
        };
        let [query, key, value, output] = &layers;
        let attention = Attention::new(to(query)?, to(key)?, to(value)?, to(output)?, heads)?.prepare()?;
        let found = attention.forward(&x.to_dtype(dtype)?)?;
        assert_eq!(found.dtype(), dtype);
        let error = worst(&found, &exact)?;
        assert!(error > 0.0 && error < limit, "{dtype:?}: {error:e}");
    }
    Ok(())
}

fn attention_to_another_sequence_is_candles(device: &Device) -> Result<()> {
    // Two groups of heads that share keys and values: those are broadcast along a dimension.
    let query = random(&[2, 2, 3, 5, 16], device);
    let (key, value) = (random(&[2, 2, 1, 7, 16], device), random(&[2, 2, 1, 7, 8], device));
    let ours = attend(&Gemm::new(), &query, &key, &value, 0.25, None)?;
    assert_eq!(ours.dims(), [2, 2, 5, 24]);
    // Candle multiplies tensors of no more than four dimensions, with one number of matrices.
    let whole = |t: &Tensor, width: usize| -> Result<Tensor> {
        let length = t.dim(3)?;
        t.broadcast_as((2, 2, 3, length, width))?.reshape((12, length, width))
    };
    let (query, key, value) = (whole(&query, 16)?, whole(&key, 16)?, whole(&value, 8)?);
    let scores = (query.matmul(&key.t()?)? * 0.25)?;
    let context = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&value)?;
    let expected = moved(&context.reshape((2, 2, 3, 5, 8))?)?;
    assert!(worst(&ours, &expected)? < tolerance(16));
    Ok(())
}

/// A view of this shape, as heads are: narrowed, heads and rows in either order, the last dimension without gaps.
fn drawn_heads(rng: &mut StdRng, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let rank = shape.len();
    let mut stored = shape.to_vec();
    let rows_first = rank > 2 && rng.random::<bool>();
    if rows_first {
        stored.swap(rank - 3, rank - 2);
    }
    let narrowed = rng.random_range(0..rank);
    // Whole vectors of any type, or, sometimes, not.
    let step = if narrowed == rank - 1 && rng.random_range(0..4) > 0 {
        8
    } else {
        1
    };
    let start = step * rng.random_range(0..3);
    let wanted = stored[narrowed];
    stored[narrowed] += start + step * rng.random_range(0..2);
    let tensor = random(&stored, device)
        .to_dtype(dtype)?
        .narrow(narrowed, start, wanted)?;
    match rows_first {
        true => tensor.transpose(rank - 3, rank - 2),
        false => Ok(tensor),
    }
}

/// Lengths, widths, masks, views and types of any kind, by one kernel or by three.
fn drawn_attention_is_that_of_fp64(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(6);
    let mut by_one = 0;
    const CASES: usize = 120;
    for _ in 0..CASES {
        let length = |rng: &mut StdRng| match rng.random_range(0..3) {
            0 => rng.random_range(1..9),
            1 => [15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257][rng.random_range(0..15usize)],
            _ => rng.random_range(1..=300),
        };
        let (queries, keys) = (length(&mut rng), length(&mut rng));
        let width = |rng: &mut StdRng| match rng.random_range(0..4) {
            0 => rng.random_range(1..=140),
            1 => 8 * rng.random_range(1..=17),
            _ => [32, 64, 128][rng.random_range(0..3usize)],
        };
        let w = width(&mut rng);
        let value_width = if rng.random_range(0..4) > 0 { w } else { width(&mut rng) };
        let batch: Vec<usize> = (0..rng.random_range(1..4)).map(|_| rng.random_range(1..5)).collect();
        let mut of_keys = batch.clone();
        for extent in &mut of_keys {
            *extent = if rng.random_range(0..4) == 0 { 1 } else { *extent };
        }
        let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3usize)];
        let query = drawn_heads(&mut rng, &[&batch[..], &[queries, w]].concat(), dtype, device)?;
        let key = drawn_heads(&mut rng, &[&of_keys[..], &[keys, w]].concat(), dtype, device)?;
        let value = drawn_heads(&mut rng, &[&of_keys[..], &[keys, value_width]].concat(), dtype, device)?;
        let mask = match rng.random_range(0..3) {
            0 => None,
            kind => {
                let mut shape = [&batch[..], &[queries, keys]].concat();
                for extent in &mut shape {
                    *extent = if rng.random_range(0..3) == 0 { 1 } else { *extent };
                }
                let count: usize = shape.iter().product();
                // What drowns scores in FP64, too; 16 bits have no such number.
                let drowns = kind == 2 && dtype == DType::F32;
                let hidden = if drowns { -1e30 } else { f32::NEG_INFINITY };
                // Seldom a whole row.
                let numbers = (0..count).map(|_| match rng.random_range(0..4) {
                    0 => hidden,
                    _ => rng.random_range(-1.0..1.0f32),
                });
                Some(Tensor::from_vec(numbers.collect::<Vec<_>>(), shape, device)?.to_dtype(dtype)?)
            }
        };
        let scale = 1.0 / (w as f64).sqrt();
        let gemm = Gemm::new();
        let ours = attend(&gemm, &query, &key, &value, scale, mask.as_ref())?;
        let how = explain_attention(&gemm, &query, &key, &value, mask.as_ref())?;
        by_one += usize::from(how.starts_with("attention_"));

        let exact = |t: &Tensor| -> Result<Tensor> {
            let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
            let matrix = t.dims()[t.rank() - 2..].to_vec();
            let whole = t.broadcast_as([&batch[..], &matrix].concat())?.contiguous()?;
            whole.reshape([&[batch.iter().product()], &matrix[..]].concat())
        };
        let mut scores = (exact(&query)?.matmul(&exact(&key)?.t()?.contiguous()?)? * scale)?;
        if let Some(mask) = &mask {
            let mask = mask.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
            let mask = mask.broadcast_as([&batch[..], &[queries, keys]].concat())?;
            scores = (scores
                + mask
                    .contiguous()?
                    .reshape((batch.iter().product::<usize>(), queries, keys))?)?;
        }
        let context = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&exact(&value)?)?;
        let context = context.reshape([&batch[..], &[queries, value_width]].concat())?;
        let expected = moved(&context)?.flatten_all()?.to_vec1::<f64>()?;
        assert_eq!(ours.elem_count(), expected.len());
        assert!(ours.is_contiguous());
        let found = ours
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()?;
        // Scores of 16-bit products are rounded, and so are their weights, each once; one kernel rounds the result alone.
        let one_kernel = how.starts_with("attention_");
        let (rounding, three) = match dtype {
            DType::F32 => (0.0, 64.0 * tolerance(w)),
            DType::F16 => (1.0 / 2048.0, 3e-2),
            _ => (1.0 / 256.0, 0.25),
        };
        let limit = |x: f64| {
            if one_kernel {
                64.0 * tolerance(w) + rounding * x.abs()
            } else {
                three
            }
        };
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let right = (found - expected).abs() <= limit(*expected) || found.is_nan() && expected.is_nan();
            assert!(
                right,
                "number {i} is {found}, not {expected}: Q {:?}, K {:?}, V {:?}, {dtype:?}, mask {:?}: {how}",
                query.layout(),
                key.layout(),
                value.layout(),
                mask.as_ref().map(Tensor::layout)
            );
        }
        let again = attend(&gemm, &query, &key, &value, scale, mask.as_ref())?;
        let bits = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let same = bits(&ours)?
            .iter()
            .zip(&bits(&again)?)
            .all(|(x, y)| x.to_bits() == y.to_bits());
        assert!(same, "another run gives other bits: {how}");
    }
    println!("{by_one} of {CASES} by one kernel");
    assert_eq!(
        by_one > CASES / 4,
        device.is_cuda(),
        "{by_one} of {CASES} by one kernel"
    );
    Ok(())
}

/// Rows that see no key have no softmax; those of a large negative number see all alike.
fn attention_of_rows_that_are_masked_whole_is_candles(device: &Device) -> Result<()> {
    for (queries, keys) in [(4, 40), (20, 70)] {
        let heads = |rows: usize| random(&[3, rows, 32], device);
        let (query, key, value) = (heads(queries), heads(keys), heads(keys));
        for hidden in [f32::NEG_INFINITY, -1e30] {
            let row = |i: usize| (0..keys).map(move |k| if i == 1 || (i == 2 && k > 3) { hidden } else { 0.0 });
            let mask: Vec<f32> = (0..queries).flat_map(row).collect();
            let mask = Tensor::from_vec(mask, (queries, keys), device)?;
            let ours = attend(&Gemm::new(), &query, &key, &value, 0.2, Some(&mask))?;
            let scores = (query.matmul(&key.t()?.contiguous()?)? * 0.2)?.broadcast_add(&mask)?;
            let expected = moved(&candle_nn::ops::softmax_last_dim(&scores)?.matmul(&value)?)?;
            let of_row = |t: &Tensor, i: usize| t.narrow(0, i, 1)?.flatten_all()?.to_vec1::<f32>();
            for i in 0..queries {
                for (found, expected) in of_row(&ours, i)?.iter().zip(&of_row(&expected, i)?) {
                    let near = f64::from((found - expected).abs()) <= 16.0 * tolerance(32);
                    assert!(
                        near || found.is_nan() && expected.is_nan(),
                        "row {i}: {found}, not {expected}"
                    );
                }
            }
            assert_eq!(of_row(&ours, 1)?.iter().all(|x| x.is_nan()), hidden.is_infinite());
        }
    }
    Ok(())
}

fn attention_is_one_kernel_where_that_is_faster(device: &Device) -> Result<()> {
    let heads = |shape: &[usize]| random(shape, device);
    let how = |gemm: &Gemm, query: &Tensor, key: &Tensor| explain_attention(gemm, query, key, key, None);
    let step = (heads(&[8, 4, 1, 64]), heads(&[8, 1, 256, 64]));
    let text = (heads(&[1, 12, 16, 32]), heads(&[1, 12, 16, 32]));
    let long = (heads(&[1, 12, 2048, 64]), heads(&[1, 12, 2048, 64]));
    let gemm = Gemm::new();
    for ((query, key), one) in [(&step, true), (&text, true), (&long, false)] {
        let how = how(&gemm, query, key)?;
        assert_eq!(how.starts_with("attention_"), one && device.is_cuda(), "{how}");
    }
    let three = "two products and a softmax: ";
    // A kernel that the settings name keeps the products, and so does a gradient.
    let named = how(&Gemm::new().kernel("ffma_64x64"), &text.0, &text.1)?;
    assert!(named.starts_with(three) && named.contains("name a kernel"), "{named}");
    let tracked = how(&gemm, Var::from_tensor(&text.0)?.as_tensor(), &text.1)?;
    assert!(tracked.starts_with(three), "{tracked}");
    // What does not fit is said by the products.
    let (query, key) = (heads(&[2, 5, 16]), heads(&[2, 5, 24]));
    assert!(how(&gemm, &query, &key)?.starts_with(three));
    assert!(attend(&gemm, &query, &key, &key, 1.0, None).is_err());
    Ok(())
}

fn gradients_of_attention_are_candles(device: &Device) -> Result<()> {
    let (width, heads) = (24, 3);
    let var = |layer: &Linear| -> Result<Linear> {
        let bias = layer
            .bias()
            .map(|bias| Ok::<_, candle_core::Error>(Var::from_tensor(bias)?.as_tensor().clone()));
        let weight = Var::from_tensor(layer.weight())?.as_tensor().clone();
        Ok(Linear::new(weight, bias.transpose()?))
    };
    let [query, key, value, output] = projections(width, device)?;
    let layers = [var(&query)?, var(&key)?, var(&value)?, var(&output)?];
    let x = Var::from_tensor(&random(&[2, 10, width], device))?;
    let scales = random(&[2, 10, width], device);
    let gradients = |y: Tensor| (y.sqr()? * &scales)?.sum_all()?.backward();
    let ours = gradients(attention(&layers, heads)?.forward(&x)?)?;
    let candle = gradients(candles_attention(&layers, heads, &x, None)?)?;
    let weights = layers.iter().map(Linear::weight);
    for (i, t) in weights
        .chain(layers.iter().filter_map(Linear::bias))
        .chain([x.as_tensor()])
        .enumerate()
    {
        let (ours, candle) = (ours.get(t).expect("a gradient"), candle.get(t).expect("a gradient"));
        let scale = worst(candle, &candle.zeros_like()?)?;
        let error = worst(ours, candle)?;
        assert!(error < 1e-4 * scale, "operand {i}: {error:e} of {scale:e}");
    }
    Ok(())
}

/// A step in FP64, of one sequence: the cache's keys and values by head and place, and the new row. Rotated numbers are rounded as the
/// cache's are.
fn stepped(
    caches: &mut [Vec<Vec<f64>>; 2],
    row: &[f64],
    [cosines, sines]: [&[f64]; 2],
    at: usize,
    [heads, queries, width]: [usize; 3],
    scale: f64,
    round: impl Fn(f64) -> f64,
) -> Vec<f64> {
    let half = width / 2;
    let part = |i: usize| &row[i * width..][..width];
    let rotated = |x: &[f64]| -> Vec<f64> {
        (0..width)
            .map(|i| match i < half {
                true => x[i] * cosines[i] - x[i + half] * sines[i],
                false => x[i - half] * sines[i - half] + x[i] * cosines[i - half],
            })
            .map(&round)
            .collect()
    };
    let mut context = Vec::new();
    for head in 0..heads {
        let [keys, values] = &mut *caches;
        keys[head][at * width..][..width].copy_from_slice(&rotated(part(heads * queries + head)));
        values[head][at * width..][..width].copy_from_slice(part(heads * queries + heads + head));
        for query in 0..queries {
            let query = rotated(part(head * queries + query));
            let dot = |key: usize| -> f64 { (0..width).map(|i| query[i] * keys[head][key * width + i]).sum() };
            let scores: Vec<f64> = (0..=at).map(|key| scale * dot(key)).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let of_column = |i: usize| {
                (0..=at)
                    .map(|key| weights[key] * values[head][key * width + i])
                    .sum::<f64>()
            };
            context.extend((0..width).map(|i| of_column(i) / total));
        }
    }
    context
}

/// Steps one after the other, to the cache's end and again from somewhere, of any sizes and types.
fn drawn_steps_are_those_of_fp64(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(21);
    for case in 0..40 {
        let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3usize)];
        let (batch, heads, queries) = (rng.random_range(1..4), rng.random_range(1..5), rng.random_range(1..10));
        let width = [8, 16, 32, 64, 96, 128, 130][rng.random_range(0..7usize)];
        let places = [1, 5, 33, 70, 300][rng.random_range(0..5usize)];
        let cache = KvCache::new(batch, heads, places, width, dtype, device)?;
        let angles = (random(&[places + 3, width / 2], device) * 3.0)?;
        let rotation = Rotation::new(&angles.cos()?.to_dtype(dtype)?, &angles.sin()?.to_dtype(dtype)?)?;
        let exact = |t: &Tensor| {
            t.to_device(&Device::Cpu)?
                .to_dtype(DType::F64)?
                .flatten_all()?
                .to_vec1::<f64>()
        };
        let (cosines, sines) = (exact(rotation.cosines())?, exact(rotation.sines())?);
        let rounded = |x: f64| -> f64 {
            match dtype {
                DType::F16 => half::f16::from_f64(x).to_f64(),
                DType::BF16 => half::bf16::from_f64(x).to_f64(),
                _ => f64::from(x as f32),
            }
        };
        let empty = || vec![vec![0.0; places * width]; heads];
        let mut caches: Vec<[Vec<Vec<f64>>; 2]> = (0..batch).map(|_| [empty(), empty()]).collect();
        let mut at = rng.random_range(0..places);
        let scale = 1.0 / (width as f64).sqrt();
        for _ in 0..4 {
            let row = (queries + 2) * heads * width;
            // Rows of a larger tensor, as a batch of them may be.
            let gap = if rng.random() { 0 } else { 16 };
            let rows = (random(&[batch, row + gap], device) * 2.0)?
                .to_dtype(dtype)?
                .narrow(1, 0, row)?;
            let position = Tensor::new(&[at as u32], device)?;
            let ours = cache.attend_step(&rows, &rotation, &position, scale)?;
            assert_eq!(ours.dims(), [batch, heads * queries * width]);
            let (found, rows) = (exact(&ours)?, exact(&rows)?);
            let angles = [&cosines, &sines].map(|table| &table[at * (width / 2)..][..width / 2]);
            let mut expected = Vec::new();
            for (row, caches) in rows.chunks(row).zip(&mut caches) {
                expected.extend(stepped(
                    caches,
                    row,
                    angles,
                    at,
                    [heads, queries, width],
                    scale,
                    rounded,
                ));
            }
            // Rotated numbers up to 4 are rounded, by one more last bit where they lie between two, and by several where candle computes
            // in 16 bits; scores follow, of which a weight is the exponential.
            let limit = match dtype {
                DType::F32 => 64.0 * tolerance(width),
                DType::F16 => 0.06,
                _ => 0.4,
            };
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    (found - expected).abs() <= limit,
                    "case {case}, place {at} of {places}: {batch} × {heads} × {queries} × {width}, {dtype:?}: number {i} is {found}, not \
                     {expected}"
                );
            }
            // The cache holds what it should, and elsewhere what it did.
            for (part, of) in [cache.keys()?, cache.values()?].iter().zip(0..) {
                let wanted = caches
                    .iter()
                    .flat_map(|caches: &[Vec<Vec<f64>>; 2]| caches[of].iter().flatten());
                for (found, expected) in exact(part)?.iter().zip(wanted) {
                    assert!(
                        (found - expected).abs() <= limit / 4.0,
                        "case {case}: the cache has {found}, not {expected}"
                    );
                }
            }
            at = if at + 1 < places {
                at + 1
            } else {
                rng.random_range(0..places)
            };
        }
    }
    Ok(())
}

fn a_cache_says_what_does_not_fit(device: &Device) -> Result<()> {
    let cache = KvCache::new(2, 3, 10, 16, DType::F32, device)?;
    let table = |rows: usize, columns: usize| random(&[rows, columns], device);
    let rotation = |rows, columns| Rotation::new(&table(rows, columns), &table(rows, columns));
    let position = Tensor::new(&[0u32], device)?;
    let fails = |rows: &Tensor, rotation: &Rotation, position: &Tensor, with: &str| {
        let error = cache
            .attend_step(rows, rotation, position, 1.0)
            .unwrap_err()
            .to_string();
        assert!(error.contains(with), "{error}");
    };
    let (rows, right) = (table(2, 4 * 48), rotation(10, 8)?);
    assert!(cache.attend_step(&rows, &right, &position, 1.0).is_ok());
    fails(&table(2, 2 * 48), &right, &position, "(queries + 2)·48");
    fails(&table(1, 4 * 48), &right, &position, "2 sequences");
    fails(&rows, &rotation(9, 8)?, &position, "of 10 places");
    fails(&rows, &rotation(10, 16)?, &position, "width 16");
    fails(&rows.to_dtype(DType::F16)?, &right, &position, "F32");
    fails(&rows, &right, &Tensor::new(&[0i64], device)?, "u32");
    fails(&rows, &right, &Tensor::new(&[0u32, 1], device)?, "u32");
    assert!(Rotation::new(&table(4, 8), &table(4, 9)).is_err());
    assert!(KvCache::new(1, 0, 4, 16, DType::F32, device).is_err());
    assert!(KvCache::new(1, 1, 4, 16, DType::U32, device).is_err());
    // What behind the position is not seen, whatever it is.
    let cache = KvCache::new(1, 1, 40, 16, DType::F32, device)?;
    let step = |at: u32, rows: &Tensor| cache.attend_step(rows, &rotation(40, 8)?, &Tensor::new(&[at], device)?, 1.0);
    let rows = table(1, 3 * 16);
    step(20, &(rows.zeros_like()? * f64::NAN)?)?;
    let y = step(7, &rows)?.flatten_all()?.to_vec1::<f32>()?;
    assert!(y.iter().all(|x| x.is_finite()), "{y:?}");
    Ok(())
}

/// Rows of any number and width, with gaps and off 16 bytes, in every type.
fn drawn_rows(rng: &mut StdRng, device: &Device) -> Result<Tensor> {
    let count = |rng: &mut StdRng| -> usize {
        match rng.random_range(0..3) {
            0 => rng.random_range(1..5),
            1 => rng.random_range(1..200),
            _ => rng.random_range(200..3000),
        }
    };
    let (rows, width) = (count(rng), count(rng));
    let width = if rng.random() { width.next_multiple_of(8) } else { width };
    let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3usize)];
    let step = if rng.random() { 8 } else { 1 };
    let (before, after) = (step * rng.random_range(0..3), step * rng.random_range(0..3));
    let wide = random(&[rows, before + width + after], device);
    // Numbers far from 0, on which the difference of two means of squares would cancel.
    let far = if rng.random_range(0..3) == 0 { 30.0 } else { 0.0 };
    let x = (wide * 4.0)?
        .affine(1.0, far)?
        .to_dtype(dtype)?
        .narrow(1, before, width)?;
    match rng.random_range(0..4) {
        0 => x.unsqueeze(1),
        1 => x.unsqueeze(0),
        _ => Ok(x),
    }
}

fn exact(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.contiguous()
}

/// That each number is one of the type's next to the right one, and that another run gives the same bits. FP32's last bits on the way
/// are those of numbers up to `largest`.
fn assert_near(run: impl Fn() -> Result<Tensor>, expected: &Tensor, largest: f64, what: &str) -> Result<()> {
    let found = run()?;
    assert_eq!(found.dims(), expected.dims(), "{what}");
    assert!(found.is_contiguous());
    let last = match found.dtype() {
        DType::F16 => 1.0 / 2048.0,
        DType::BF16 => 1.0 / 256.0,
        _ => 0.0,
    };
    let way = 16.0 * f64::from(f32::EPSILON) * largest.max(1.0);
    let numbers = |t: &Tensor| exact(t)?.flatten_all()?.to_vec1::<f64>();
    for (i, (found, expected)) in numbers(&found)?.iter().zip(&numbers(expected)?).enumerate() {
        let near = (found - expected).abs() <= last * expected.abs() * 1.01 + way * expected.abs().max(1.0);
        assert!(near, "{what}: number {i} is {found}, not {expected}");
    }
    let bits = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    assert_eq!(bits(&found)?, bits(&run()?)?, "{what}: another run gives other bits");
    Ok(())
}

fn drawn_norms_are_those_of_fp64(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(11);
    for case in 0..120 {
        let x = drawn_rows(&mut rng, device)?;
        let (width, dtype) = (x.dim(D::Minus1)?, x.dtype());
        let columns = || random(&[width], device).to_dtype(dtype);
        let (weight, bias) = (columns()?, if rng.random() { Some(columns()?) } else { None });
        let epsilon = [1e-5, 1e-12, 0.1][rng.random_range(0..3usize)];
        let centered: bool = rng.random();
        let norm = LayerNorm::new(weight.clone(), bias.clone(), epsilon);
        let norm = if centered { norm } else { norm.without_mean() };

        let mut expected = exact(&x)?;
        let mean = expected.mean_keepdim(D::Minus1)?;
        if centered {
            expected = expected.broadcast_sub(&mean)?;
        }
        let variance = expected.sqr()?.mean_keepdim(D::Minus1)?;
        // One number less its mean is 0, or what rounding leaves.
        let least = (variance.min_all()?.to_scalar::<f64>()? + epsilon).sqrt();
        if centered && (width == 1 || least < 0.03) {
            continue;
        }
        expected = expected.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
        expected = expected.broadcast_mul(&exact(&weight)?)?;
        if let Some(bias) = &bias {
            expected = expected.broadcast_add(&exact(bias)?)?;
        }
        // Candle's, on the CPU, rounds 16-bit numbers twice.
        if !device.is_cuda() && dtype != DType::F32 {
            continue;
        }
        let what = format!(
            "case {case}: {:?}, {dtype:?}, mean {centered}, bias {}",
            x.layout(),
            bias.is_some()
        );
        // The mean is wrong by last bits of the largest number, and what is left of it is divided by the least deviation.
        let largest = exact(&x)?.abs()?.max_all()?.to_scalar::<f64>()? / least;
        // Candle's, on the CPU, takes the difference of the mean square and the mean's square, which cancels. There it is candle's to the bit.
        let offset = mean.abs()?.max_all()?.to_scalar::<f64>()? / least;
        if let (Some(bias), true, true) = (&bias, centered && !device.is_cuda(), offset.powi(2) > largest) {
            let candles = candle_nn::ops::layer_norm(&x.contiguous()?, &weight, bias, epsilon as f32)?;
            let bits = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
            assert_eq!(bits(&norm.forward(&x)?)?, bits(&candles)?, "{what}");
            continue;
        }
        if !device.is_cuda() && largest > 10.0 {
            continue;
        }
        assert_near(|| norm.forward(&x), &expected, largest, &what)?;
    }
    Ok(())
}

fn drawn_softmaxes_are_those_of_fp64(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(12);
    for case in 0..120 {
        let x = drawn_rows(&mut rng, device)?;
        let hidden = rng.random_range(0..3) == 0;
        let x = match hidden && x.dim(D::Minus1)? > 1 {
            // Every third column is masked, the first is not.
            true => {
                let width = x.dim(D::Minus1)?;
                let mask: Vec<f32> = (0..width)
                    .map(|i| if i % 3 == 1 { f32::NEG_INFINITY } else { 0.0 })
                    .collect();
                x.broadcast_add(&Tensor::from_vec(mask, width, device)?.to_dtype(x.dtype())?)?
            }
            false => x,
        };
        if !device.is_cuda() && x.dtype() != DType::F32 {
            continue;
        }
        let expected = candle_nn::ops::softmax(&exact(&x)?, D::Minus1)?;
        assert_near(
            || softmax(&x),
            &expected,
            1.0,
            &format!("case {case}: {:?}, {:?}", x.layout(), x.dtype()),
        )?;
    }
    // What is not a number stays none, in its row alone.
    let x = Tensor::new(
        &[
            [1f32, f32::NAN, 0.],
            [f32::INFINITY, 0., 0.],
            [f32::NEG_INFINITY; 3],
            [0., 0., 0.],
        ],
        device,
    )?;
    let y = softmax(&x)?.to_vec2::<f32>()?;
    assert!(y[..3].iter().flatten().all(|x| x.is_nan()), "{y:?}");
    assert!(y[3].iter().all(|x| (x - 1.0 / 3.0).abs() < 1e-6), "{y:?}");
    Ok(())
}

/// The same tensor on the CPU, in the order of its dimensions.
fn on_the_cpu(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.contiguous()
}

fn drawn_places_are_candles_on_the_cpu(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(13);
    for case in 0..120 {
        // Few rows of a vocabulary, or what norms and softmax have, too.
        let x = match case % 3 {
            0 => {
                let words = [32_000, 50_257, 65_536, 131_073, 262_144][rng.random_range(0..5usize)];
                let words = words - rng.random_range(0..3) * rng.random_range(0..100usize);
                let rows = rng.random_range(1..4);
                let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3usize)];
                random(&[rows, words + 9], device)
                    .to_dtype(dtype)?
                    .narrow(1, rng.random_range(0..9usize), words)?
            }
            _ => drawn_rows(&mut rng, device)?,
        };
        // Of 16-bit numbers many are equal anyway.
        let x = match rng.random_range(0..4) {
            0 => (x * 3.0)?.round()?,
            1 => {
                let width = x.dim(D::Minus1)?;
                let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 0.0, 0.0];
                let row: Vec<f32> = (0..width)
                    .map(|_| special[rng.random_range(0..special.len())])
                    .collect();
                let mut first = row.clone();
                first[0] = 0.0;
                let row = if rng.random() { row } else { first };
                x.zeros_like()?
                    .broadcast_add(&Tensor::from_vec(row, width, device)?.to_dtype(x.dtype())?)?
            }
            _ => x,
        };
        let expected = on_the_cpu(&x)?.argmax(D::Minus1)?;
        let found = argmax(&x)?;
        let what = format!("case {case}: {:?}, {:?}", x.layout(), x.dtype());
        assert_eq!((found.dims(), found.dtype()), (expected.dims(), DType::U32), "{what}");
        let numbers = |t: &Tensor| t.flatten_all()?.to_vec1::<u32>();
        assert_eq!(numbers(&found)?, numbers(&expected)?, "{what}");
    }
    Ok(())
}

/// Views of several strides, other types, and what has no largest number.
fn what_no_kernel_looks_through_is_candles(device: &Device) -> Result<()> {
    for x in [
        random(&[24, 10], device).t()?,
        random(&[4, 3, 8], device).transpose(0, 1)?,
        random(&[3, 700], device).to_dtype(DType::F64)?,
        (random(&[5, 33], device) * 100.0)?.to_dtype(DType::I64)?,
        random(&[7, 1], device),
        random(&[1, 9, 33], device).broadcast_as((4, 9, 33))?,
        random(&[300], device),
    ] {
        let (found, expected) = (argmax(&x)?, on_the_cpu(&x)?.argmax(D::Minus1)?);
        assert_eq!(found.dims(), expected.dims(), "{:?}", x.layout());
        let numbers = |t: &Tensor| t.flatten_all()?.to_vec1::<u32>();
        assert_eq!(numbers(&found)?, numbers(&expected)?, "{:?}", x.layout());
    }
    // A variable's place has no gradient, with candle or with a kernel.
    let x = Var::from_tensor(&random(&[3, 20], device))?;
    assert!(!argmax(x.as_tensor())?.track_op());
    for empty in [[0, 16], [16, 0]] {
        assert!(argmax(&Tensor::zeros(&empty, DType::F32, device)?).is_err());
    }
    assert!(argmax(&Tensor::new(1f32, device)?).is_err());
    Ok(())
}

fn gradients_of_norms_are_those_of_candles_operations(device: &Device) -> Result<()> {
    let var = |shape: &[usize]| Var::from_tensor(&random(shape, device));
    for (centered, with_bias) in [(true, true), (true, false), (false, false)] {
        let (x, weight, bias) = (var(&[3, 20])?, var(&[20])?, var(&[20])?);
        let bias = with_bias.then_some(&bias);
        let norm = LayerNorm::new(
            weight.as_tensor().clone(),
            bias.map(|bias| bias.as_tensor().clone()),
            1e-5,
        );
        let norm = if centered { norm } else { norm.without_mean() };
        let scales = random(&[3, 20], device);
        let gradients = (norm.forward(&x)? * &scales)?.sum_all()?.backward()?;
        let composed = match centered {
            true => {
                let bias = bias.map_or_else(|| weight.zeros_like(), |bias| Ok(bias.as_tensor().clone()))?;
                candle_nn::ops::layer_norm_slow(&x, &weight, &bias, 1e-5)?
            }
            false => candle_nn::ops::rms_norm_slow(&x, &weight, 1e-5)?,
        };
        let expected = (composed * &scales)?.sum_all()?.backward()?;
        for t in [Some(&x), Some(&weight), bias].into_iter().flatten() {
            let (found, expected) = (
                gradients.get(t).expect("a gradient"),
                expected.get(t).expect("a gradient"),
            );
            let error = worst(found, expected)?;
            assert!(error < 1e-4, "{error:e}");
        }
    }
    let x = var(&[3, 20])?;
    let gradient = (softmax(x.as_tensor())? * random(&[3, 20], device))?
        .sum_all()?
        .backward()?;
    assert!(gradient.get(&x).is_some());
    Ok(())
}

/// What no kernel takes is candle's: transposed rows are gathered, long ones composed.
fn views_and_long_rows_have_norms_too(device: &Device) -> Result<()> {
    let columns = |width: usize| Ok::<_, candle_core::Error>((random(&[width], device), random(&[width], device)));
    for (x, width) in [
        (random(&[24, 10], device).t()?, 24),
        (random(&[4, 3, 8], device).transpose(0, 1)?, 8),
        (random(&[2, 20_001], device), 20_001),
        (random(&[2, 20_000], device), 20_000),
        (random(&[0, 16], device), 16),
    ] {
        let (weight, bias) = columns(width)?;
        let ours = LayerNorm::new(weight.clone(), Some(bias.clone()), 1e-5).forward(&x)?;
        assert_eq!(ours.dims(), x.dims());
        assert_eq!(softmax(&x)?.dims(), x.dims());
        if x.elem_count() == 0 {
            continue;
        }
        let expected = candle_nn::ops::layer_norm_slow(&x.contiguous()?, &weight, &bias, 1e-5)?;
        let error = worst(&ours, &expected)?;
        assert!(error < 1e-4, "{:?}: {error:e}", x.layout());
        let error = worst(&softmax(&x)?, &candle_nn::ops::softmax(&x, D::Minus1)?)?;
        assert!(error < 1e-5, "{:?}: {error:e}", x.layout());
    }
    // Weights of another width are refused as candle refuses them.
    let norm = LayerNorm::new(random(&[7], device), None, 1e-5);
    assert!(norm.forward(&random(&[3, 8], device)).is_err());
    Ok(())
}

/// A layer (outputs, inputs) of numbers that this type has, with a bias or without.
fn drawn_layer(rng: &mut StdRng, [outputs, inputs]: [usize; 2], bias: bool, like: &Tensor) -> Result<Linear> {
    let (dtype, device) = (like.dtype(), like.device());
    let numbers = |rng: &mut StdRng, shape: &[usize], scale: f64| -> Result<Tensor> {
        let count = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
        (Tensor::from_vec(numbers, shape, device)? * scale)?.to_dtype(dtype)
    };
    let weight = numbers(rng, &[outputs, inputs], 1.0 / (inputs as f64).sqrt())?;
    let bias = bias.then(|| numbers(rng, &[outputs], 0.5)).transpose()?;
    Ok(Linear::new(weight, bias))
}

/// An RMS norm of rows of this width, with weights around 1.
fn drawn_rms_norm(rng: &mut StdRng, width: usize, epsilon: f64, like: &Tensor) -> Result<LayerNorm> {
    let weight: Vec<f32> = (0..width).map(|_| rng.random_range(0.5..1.5)).collect();
    let weight = Tensor::from_vec(weight, width, like.device())?.to_dtype(like.dtype())?;
    Ok(LayerNorm::new(weight, None, epsilon).without_mean())
}

/// `norm(x)` in FP64 on the CPU, its ε given.
fn exact_rms_norm(x: &Tensor, norm: &LayerNorm, epsilon: f64) -> Result<Tensor> {
    let x = exact(x)?;
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean + epsilon)?.sqrt()?)?
        .broadcast_mul(&exact(norm.weight())?)
}

/// What `layer` makes of rows in FP64, and the sums of magnitudes.
fn exact_layer(rows: &Tensor, layer: &Linear) -> Result<[Tensor; 2]> {
    let weight = exact(layer.weight())?.t()?;
    let bias = match layer.bias() {
        Some(bias) => exact(bias)?,
        None => Tensor::zeros(layer.weight().dim(0)?, DType::F64, &Device::Cpu)?,
    };
    let sums = rows.broadcast_matmul(&weight)?.broadcast_add(&bias)?;
    let magnitudes = rows
        .abs()?
        .broadcast_matmul(&weight.abs()?)?
        .broadcast_add(&bias.abs()?)?;
    Ok([sums, magnitudes])
}

/// Some rows of a width, most often one, that start on 16 bytes or not, and are neighbours or not.
fn drawn_few_rows(rng: &mut StdRng, device: &Device) -> Result<Tensor> {
    let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)];
    let width = match rng.random_range(0..4) {
        0 => rng.random_range(1..300),
        1 => rng.random_range(1..20) * 64,
        2 => rng.random_range(1..100) * 8,
        _ => [2048, 2056, 4096, 5000][rng.random_range(0..4)],
    };
    let rows = [1, 1, 1, 2, 2, 3][rng.random_range(0..6)];
    let (before, after) = (rng.random_range(0..3) * 4, rng.random_range(0..3) * 4);
    let numbers: Vec<f32> = (0..rows * (before + width + after))
        .map(|_| rng.random_range(-3.0..3.0))
        .collect();
    let x = Tensor::from_vec(numbers, (rows, before + width + after), device)?
        .to_dtype(dtype)?
        .narrow(1, before, width)?;
    match rng.random_range(0..3) {
        0 => x.unsqueeze(0),
        _ => Ok(x),
    }
}

/// How far numbers of this type may be from their exact ones.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 2048.0,
        DType::BF16 => 1.0 / 256.0,
        _ => 0.0,
    }
}

fn assert_within(got: &Tensor, expected: &Tensor, bound: &Tensor, what: &str) -> Result<()> {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    let flat = |t: &Tensor| exact(t)?.flatten_all()?.to_vec1::<f64>();
    for ((got, expected), bound) in flat(got)?.into_iter().zip(flat(expected)?).zip(flat(bound)?) {
        assert!(
            (got - expected).abs() <= bound,
            "{what}: {got}, not {expected} (±{bound:e})"
        );
    }
    Ok(())
}

/// The rounding of rows between norm and product, of gate and of result counts where there is one; sums are FP32.
fn layers_behind_norms_are_those_of_fp64(device: &Device) -> Result<()> {
    const SUM: f64 = 8.0 * f32::EPSILON as f64;
    let mut rng = StdRng::seed_from_u64(4);
    for round in 0..80 {
        let x = drawn_few_rows(&mut rng, device)?;
        let (width, dtype) = (x.dim(D::Minus1)?, x.dtype());
        let (u, sum) = (unit(dtype), SUM * (width as f64).sqrt());
        let epsilon = rng.random_range(1e-6..0.1);
        let norm = drawn_rms_norm(&mut rng, width, epsilon, &x)?;
        let normed = exact_rms_norm(&x, &norm, epsilon)?;
        let (bias, prepared, outputs) = (rng.random(), rng.random_bool(0.8), rng.random_range(1..200));
        let what = format!(
            "round {round}: {dtype:?} {:?} → {outputs}, bias {bias}, prepared {prepared}",
            x.dims()
        );

        let layer = drawn_layer(&mut rng, [outputs, width], bias, &x)?.with_norm(norm.clone());
        let layer = if prepared { layer.prepare()? } else { layer };
        let [sums, magnitudes] = exact_layer(&normed, &layer)?;
        let off = (magnitudes.affine(u + sum, 1e-7)? + (sums.abs()? * u)?)?;
        assert_within(&layer.forward(&x)?, &sums, &off, &what)?;
        let residual = x.narrow(D::Minus1, 0, 1)?;
        let more = exact(&residual)?;
        let off = (off + more.abs()?.broadcast_add(&sums.abs()?)?.affine(u + 4e-7, 0.0)?)?;
        let got = layer.forward_residual(&x, &residual)?;
        assert_within(&got, &sums.broadcast_add(&more)?, &off, &format!("{what}, residual"))?;

        let hidden = rng.random_range(1..150);
        let mut part = |shape| drawn_layer(&mut rng, shape, bias, &x);
        let (gate, up, down) = (part([hidden, width])?, part([hidden, width])?, part([width, hidden])?);
        let mlp = GatedMlp::from_layers(gate, up, down, Activation::Silu)?.with_norm(norm);
        let mlp = if prepared { mlp.prepare()? } else { mlp };
        let [gate, gate_magnitudes] = exact_layer(&normed, mlp.gate())?;
        let [up, up_magnitudes] = exact_layer(&normed, mlp.up())?;
        let gate = gate.silu()?;
        let gate_off = (gate_magnitudes.affine(1.2 * (u + sum), 1e-6)? + (gate.abs()? * u)?)?;
        let up_off = (up_magnitudes * (u + sum))?;
        let expected = (&gate * &up)?;
        let off = ((gate.abs()? * &up_off)? + (up.abs()? * &gate_off)? + (up_off * gate_off)?)?;
        let off = (off + expected.abs()?.affine(u + 4e-7, 1e-6)?)?;
        let got = mlp.hidden(&x)?;
        assert_within(&got, &expected, &off, &format!("{what}, hidden {hidden}"))?;
        // And down of that.
        let through = mlp.down().forward_residual(&got, &x)?;
        let error = worst(
            &mlp.forward_residual(&x, &x)?.to_dtype(DType::F32)?,
            &through.to_dtype(DType::F32)?,
        )?;
        assert!(error == 0.0, "{what}: {error:e}");
    }
    Ok(())
}

/// A kernel for fused layers takes nothing else, so a layer that names it has all of it inside or fails.
fn norms_and_gates_are_inside_a_named_kernel(device: &Device) -> Result<()> {
    if !device.is_cuda() {
        return Ok(());
    }
    let mut rng = StdRng::seed_from_u64(5);
    for (dtype, names) in [
        (
            DType::F32,
            &[
                "gemv_fused_dot_m1",
                "gemv_fused_dot_m2",
                "gemv_fused_m1_k1024",
                "gemv_fused_m1_k2048",
            ][..],
        ),
        (
            DType::F16,
            &[
                "gemv_fused_f16_m1_k1024",
                "gemv_fused_f16_m1_k4096",
                "gemv_fused_f16_m2_k2048",
            ],
        ),
        (
            DType::BF16,
            &[
                "gemv_fused_bf16_m1_k2048",
                "gemv_fused_bf16_m1_k4096",
                "gemv_fused_bf16_m2_k2048",
            ],
        ),
    ] {
        for name in names {
            for rows in 1..=if name.contains("m2") { 2 } else { 1 } {
                let (width, hidden) = (8 * rng.random_range(1..700), rng.random_range(1..300));
                let x = random(&[rows, width], device).to_dtype(dtype)?;
                let norm = drawn_rms_norm(&mut rng, width, 1e-5, &x)?;
                let mut layer = |shape| drawn_layer(&mut rng, shape, rows == 1, &x);
                let (gate, up, down) = (
                    layer([hidden, width])?,
                    layer([hidden, width])?,
                    layer([width, hidden])?,
                );
                let gemm = Gemm::new().kernel(*name);
                let alone = gate.clone().with_norm(norm.clone());
                let inside = alone.clone().with_gemm(gemm.clone()).forward(&x)?;
                let what = format!("{name}, {rows}×{width}→{hidden}");
                let tolerance = tolerance(width).max(4.0 * unit(dtype));
                let wide = |t: Tensor| t.to_dtype(DType::F32);
                let error = worst(&wide(inside)?, &wide(gate.forward(&norm.forward(&x)?)?)?)?;
                assert!(error < tolerance, "{what}: {error:e}");
                // A kernel that this layer names takes the rest of its products not at all.
                assert!(gate.clone().with_gemm(gemm.clone()).forward(&x).is_err(), "{what}");

                let mlp = GatedMlp::from_layers(gate, up, down, Activation::Silu)?;
                let steps = (mlp.gate().forward(&x)? * mlp.up().forward(&x)?)?;
                let error = worst(&wide(mlp.prepare()?.with_gemm(&gemm).hidden(&x)?)?, &wide(steps)?)?;
                assert!(error < tolerance, "{what}, gated: {error:e}");
            }
        }
    }
    Ok(())
}

/// Likewise the tiles whose columns are gated, of any number of rows. They norm none, so a norm stays a step of its own.
fn gates_of_many_rows_are_inside_a_named_kernel(device: &Device) -> Result<()> {
    if !device.is_cuda() {
        return Ok(());
    }
    const SUM: f64 = 8.0 * f32::EPSILON as f64;
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..60 {
        let dtype = [DType::F16, DType::BF16][round % 2];
        let tile = ["128x256_2cta", "128x224_2cta", "128x128"][rng.random_range(0..3)];
        let name = format!("gemm_{}_sm90_{tile}_gated_nt", dtype.as_str());
        let (batch, rows, width) = (
            rng.random_range(1..4),
            rng.random_range(1..300),
            8 * rng.random_range(1..150),
        );
        let hidden = [rng.random_range(1..500), 8 * rng.random_range(1..60)][rng.random_range(0..2)];
        let x = random(&[batch, rows, width], device).to_dtype(dtype)?;
        let bias = rng.random();
        let mut part = |shape| drawn_layer(&mut rng, shape, bias, &x);
        let (gate, up, down) = (part([hidden, width])?, part([hidden, width])?, part([width, hidden])?);
        let activation = [Activation::Silu, Activation::Sigmoid, Activation::Relu][rng.random_range(0..3)];
        let mlp = GatedMlp::from_layers(gate, up, down, activation)?.prepare()?;
        let what = format!("round {round}: {name}, {batch}×{rows}×{width}→{hidden}, bias {bias}, {activation:?}");

        let (u, sum) = (unit(dtype), SUM * (width as f64).sqrt());
        let [gate, gate_magnitudes] = exact_layer(&exact(&x)?, mlp.gate())?;
        let [up, up_magnitudes] = exact_layer(&exact(&x)?, mlp.up())?;
        let gate = match activation {
            Activation::Silu => gate.silu()?,
            Activation::Relu => gate.relu()?,
            _ => candle_nn::ops::sigmoid(&gate)?,
        };
        // Nothing is rounded between the products and the gated result.
        let gate_off = (gate_magnitudes.affine(1.2 * sum, 1e-6)? + gate.abs()?.affine(1e-5, 0.0)?)?;
        let up_off = (up_magnitudes * sum)?;
        let expected = (&gate * &up)?;
        let off = ((gate.abs()? * &up_off)? + (up.abs()? * &gate_off)? + (up_off * gate_off)?)?;
        let off = (off + expected.abs()?.affine(u + 4e-7, 1e-6)?)?;
        let gemm = Gemm::new().kernel(name.as_str());
        match mlp.clone().with_gemm(&gemm).hidden(&x) {
            Ok(got) => assert_within(&got, &expected, &off, &what)?,
            // There are GPUs without these kernels.
            Err(error) => {
                assert!(error.to_string().contains("compute capability"), "{what}: {error}");
                continue;
            }
        }
        // Behind a norm of its own, what is gated is normed as well.
        if round % 4 == 0 {
            let norm = drawn_rms_norm(&mut rng, width, 1e-5, &x)?;
            let normed = norm.forward(&x)?;
            let got = mlp.clone().with_norm(norm).with_gemm(&gemm).hidden(&x);
            let error = worst(
                &got?.to_dtype(DType::F32)?,
                &mlp.with_gemm(&gemm).hidden(&normed)?.to_dtype(DType::F32)?,
            )?;
            assert!(error == 0.0, "{what}, normed: {error:e}");
        }
    }
    Ok(())
}

fn gradients_flow_through_layers_behind_norms(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(6);
    let x = Var::from_tensor(&random(&[1, 64], device))?;
    let norm = drawn_rms_norm(&mut rng, 64, 1e-5, &x)?;
    let layer = drawn_layer(&mut rng, [24, 64], true, &x)?;
    let gradient = |y: Tensor| -> Result<Tensor> {
        let gradients = y.sqr()?.sum_all()?.backward()?;
        Ok(gradients.get(&x).expect("x counts").clone())
    };
    let apart = gradient(layer.forward(&norm.forward(&x)?)?)?;
    let together = gradient(layer.with_norm(norm).forward(&x)?)?;
    let error = worst(&together, &apart)?;
    assert!(error < tolerance(64), "{error:e}");
    Ok(())
}

fn encoder_layers_are_candles(device: &Device) -> Result<()> {
    let (width, inner, heads) = (48, 80, 4);
    let layers = projections(width, device)?;
    let norm = || LayerNorm::new(random(&[width], device), Some(random(&[width], device)), 1e-5);
    let (norm1, norm2) = (norm(), norm());
    let plain = Mlp::from_layers(vec![
        layer(inner, width, true, device)?.with_activation(Activation::GeluErf),
        layer(width, inner, true, device)?,
    ]);
    let gated = GatedMlp::from_layers(
        layer(inner, width, true, device)?,
        layer(inner, width, true, device)?,
        layer(width, inner, true, device)?,
        Activation::Silu,
    )?;
    let candles_feed_forward = |part: &FeedForward, x: &Tensor| -> Result<Tensor> {
        match part {
            FeedForward::Gated(gated) => {
                let gate = stock(gated.gate()).forward(x)?.silu()?;
                stock(gated.down()).forward(&(gate * stock(gated.up()).forward(x)?)?)
            }
            FeedForward::Plain(plain) => {
                let [first, second] = plain.layers() else {
                    panic!("two layers")
                };
                stock(second).forward(&stock(first).forward(x)?.gelu_erf()?)
            }
            other => panic!("{other:?}"),
        }
    };
    let x = random(&[2, 10, width], device);
    let [mask, _] = masks(heads, device)?;
    for part in [FeedForward::from(plain), FeedForward::from(gated)] {
        for mask in [None, Some(&mask)] {
            let attention = attention(&layers, heads)?;
            let attend = |x: &Tensor| candles_attention(&layers, heads, x, mask);
            let (norm1, norm2) = (norm1.clone(), norm2.clone());

            let y = (attend(&norm1.forward(&x)?)? + &x)?;
            let expected = (candles_feed_forward(&part, &norm2.forward(&y)?)? + &y)?;
            let ours = EncoderLayer::pre_norm(attention.clone(), norm1.clone(), part.clone(), norm2.clone());
            let error = worst(&ours.prepare()?.forward_with(&x, mask)?, &expected)?;
            assert!(error < 8.0 * tolerance(inner), "{error:e}");

            let y = norm1.forward(&(attend(&x)? + &x)?)?;
            let expected = norm2.forward(&(candles_feed_forward(&part, &y)? + &y)?)?;
            let ours = EncoderLayer::post_norm(attention, norm1, part.clone(), norm2);
            let ours = ours.with_gemm(&Gemm::new().precision(Precision::Fp32Strict));
            let error = worst(&ours.forward_with(&x, mask)?, &expected)?;
            assert!(error < 8.0 * tolerance(inner), "{error:e}");
            if mask.is_none() {
                assert_eq!(worst(&ours.forward(&x)?, &ours.forward_with(&x, None)?)?, 0.0);
            }
        }
    }
    Ok(())
}

fn a_stack_adds_its_residual(device: &Device) -> Result<()> {
    let mlp = Mlp::from_layers(vec![
        layer(16, 8, true, device)?.with_activation(Activation::Relu),
        layer(8, 16, true, device)?,
    ]);
    let (x, residual) = (random(&[3, 8], device), random(&[8], device));
    let expected = mlp.forward(&x)?.broadcast_add(&residual)?;
    for mlp in [
        mlp.clone(),
        mlp.with_gemm(&Gemm::new().precision(Precision::Fp32Strict)),
    ] {
        assert!(worst(&mlp.forward_residual(&x, &residual)?, &expected)? < tolerance(16));
    }
    assert!(Mlp::from_layers(Vec::new()).forward_residual(&x, &residual).is_err());
    Ok(())
}

fn errors_say_what_does_not_fit(device: &Device) -> Result<()> {
    let says = |text: String, words: &[&str]| assert!(words.iter().all(|word| text.contains(word)), "{text}");
    let one = |out, inputs| layer(out, inputs, true, device);
    let square = || one(24, 24);

    says(Linear::side_by_side(&[]).unwrap_err().to_string(), &["no layers"]);
    says(
        Linear::side_by_side(&[one(4, 8)?, one(4, 9)?]).unwrap_err().to_string(),
        &["layer 1", "[4, 9]", "[4, 8]"],
    );
    let followed = one(4, 8)?.with_activation(Activation::Relu);
    says(
        Linear::side_by_side(&[one(4, 8)?, followed]).unwrap_err().to_string(),
        &["layer 1", "Relu", "Identity"],
    );
    let wide = Linear::new(random(&[4, 8], device), Some(random(&[2, 4], device)));
    says(
        Linear::side_by_side(&[wide]).unwrap_err().to_string(),
        &["layer 0", "[2, 4]"],
    );

    let uneven = Attention::new(square()?, one(12, 24)?, one(12, 24)?, square()?, 4);
    says(uneven.unwrap_err().to_string(), &["[24, 24]", "[12, 24]"]);
    for heads in [0, 5] {
        let attention = Attention::new(square()?, square()?, square()?, square()?, heads);
        let words = [&format!("{heads} heads"), "[72, 24]", "[24, 24]"];
        says(attention.unwrap_err().to_string(), &words);
    }
    let attention = Attention::new(square()?, square()?, square()?, square()?, 4)?;
    says(
        attention.forward(&random(&[10, 24], device)).unwrap_err().to_string(),
        &["(batch, length, in)", "[10, 24]"],
    );
    says(
        attention
            .forward(&random(&[2, 10, 23], device))
            .unwrap_err()
            .to_string(),
        &["the projections of an Attention", "[2, 10, 23]"],
    );
    let x = random(&[2, 10, 24], device);
    let mask = random(&[3, 1, 1, 10], device);
    says(
        attention.forward_with(&x, Some(&mask), None).unwrap_err().to_string(),
        &["the scores of attention", "[3, 1, 1, 10]", "[2, 4, 10, 10]"],
    );
    says(
        attention.forward_with(&x, None, Some(&mask)).unwrap_err().to_string(),
        &["the output of an Attention", "[3, 1, 1, 10]"],
    );
    let matrices = (random(&[2, 3], device), random(&[3, 4], device));
    says(
        Gemm::new()
            .matmul_side_by_side(&matrices.0, &matrices.1)
            .unwrap_err()
            .to_string(),
        &["Gemm::matmul_side_by_side", "[2, 3]", "no"],
    );
    Ok(())
}
