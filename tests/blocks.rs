//! Blocks of transformers on every device: against the same made of candle's own operations, and their gradients against
//! candle's autograd.

#[macro_use]
mod devices;

use candle_core::{DType, Device, Module, Result, Tensor, Var, D};
use candle_nn::LayerNorm;
use candle_sgemm::blocks::{attend, Attention, EncoderLayer, FeedForward};
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
    gradients_of_attention_are_candles,
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

/// Queries few and many, keys of any number, heads that are views, masks that are broadcast and hide keys.
fn drawn_attention_is_that_of_fp64(device: &Device) -> Result<()> {
    const CASES: u64 = 80;
    for seed in 0..CASES {
        let mut rng = StdRng::seed_from_u64(seed);
        // Three kernels round scores up to 8 to 16 bits, by 2⁻⁸ or 2⁻⁵ at most, and values up to 4 follow.
        let types = [(DType::F32, 1e-5), (DType::F16, 0.02), (DType::BF16, 0.15)];
        let (dtype, limit) = types[rng.random_range(0..types.len())];
        let (batch, heads) = (rng.random_range(1..=3), rng.random_range(1..=6));
        let most_queries = if rng.random() { 8 } else { 90 };
        let (queries, keys) = (rng.random_range(1..=most_queries), rng.random_range(1..=300));
        let (width, value_width) = (8 * rng.random_range(1..=16), 8 * rng.random_range(1..=16));
        let heads_of = |length: usize, width: usize| -> Result<Tensor> {
            let rows = random(&[batch, length, heads, width], device).to_dtype(dtype)?;
            rows.transpose(1, 2)
        };
        let (query, key) = (heads_of(queries, width)?, heads_of(keys, width)?);
        let value = heads_of(keys, value_width)?;
        let mask = match rng.random_range(0..3) {
            0 => None,
            1 => Some(random(&[batch, 1, queries, keys], device).to_dtype(dtype)?),
            _ => {
                let hidden = |key: usize| key > 0 && key.is_multiple_of(3);
                let row: Vec<f32> = (0..keys)
                    .map(|key| if hidden(key) { f32::NEG_INFINITY } else { 0.0 })
                    .collect();
                Some(Tensor::from_vec(row, (1, 1, 1, keys), device)?.to_dtype(dtype)?)
            }
        };
        let scale = 1.0 / (width as f64).sqrt();
        let ours = attend(&Gemm::new(), &query, &key, &value, scale, mask.as_ref())?;

        let exact = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.contiguous();
        let mut scores = (exact(&query)?.matmul(&exact(&key)?.t()?.contiguous()?)? * scale)?;
        if let Some(mask) = &mask {
            scores = scores.broadcast_add(&exact(mask)?)?;
        }
        let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
        let expected = moved(&weights.matmul(&exact(&value)?)?)?;
        assert_eq!(ours.dims(), expected.dims());
        let error = worst(&exact(&ours)?, &expected)?;
        assert!(
            error <= limit,
            "seed {seed}: {dtype:?}, {batch} × {heads} heads of {queries} queries and {keys} keys, widths {width} and \
             {value_width}, mask {:?}: {error:e}",
            mask.map(|mask| mask.dims().to_vec())
        );
    }
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

fn encoder_layers_are_candles(device: &Device) -> Result<()> {
    let (width, inner, heads) = (48, 80, 4);
    let layers = projections(width, device)?;
    let norm = || LayerNorm::new(random(&[width], device), random(&[width], device), 1e-5);
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
