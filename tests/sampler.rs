//! The products that are drawn: the same everywhere, of every class and alignment, within bounds, and views as candle makes them.

#[allow(dead_code)] // the test has a part of it
#[path = "../benches/support/sampler/mod.rs"]
mod sampler;

use candle_core::{Device, Tensor as CandleTensor};
use candle_sgemm::gemm::{DType, Precision};
use sampler::{Class, Drawn, Sampler, Tensor, View};
use std::collections::HashSet;

const COUNT: usize = 6000;

fn drawn(seed: u64) -> Vec<Drawn> {
    Sampler::new(seed, &[]).take(COUNT).collect()
}

#[test]
fn the_same_seed_draws_the_same_products_on_every_machine() {
    let names = |seed| {
        Sampler::new(seed, &[])
            .take(12)
            .map(|drawn| drawn.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(7), names(7));
    assert_ne!(names(7), names(8));
    // Written down once: reports name seeds, and mean these products.
    assert_eq!(names(1), FIRST, "{:#?}", names(1));
}

const FIRST: [&str; 12] = [
    "layer NT 6×5120×640, A narrowed",
    "head NT 2×256000×768",
    "attention NN 360 × 1×40×4, B heads",
    "convolution NT 256×960×144",
    "gradient NT 144 × 9×640×89600, B broadcast",
    "odd TT 4820×1752×4",
    "layer NT 26 × 3×110×192, A narrowed, B broadcast",
    "head NT 16×50265×640, A narrowed",
    "attention NN 1600 × 6×112×147, B broadcast",
    "convolution TN 7 × 217×48×1280, B broadcast",
    "gradient TN 196 × 518×160×3383",
    "odd NT 6×1×5, A narrowed, B narrowed",
];

#[test]
fn a_class_is_drawn_alike_alone_and_in_company() {
    for class in Class::ALL {
        let alone: Vec<_> = Sampler::new(3, &[class]).take(20).collect();
        let mut among: Vec<_> = Sampler::new(3, &[]).take(20 * Class::ALL.len()).collect();
        among.retain(|drawn| drawn.class == class);
        assert_eq!(alone, among);
        assert_eq!(class.to_string().parse(), Ok(class));
    }
    assert!("layers".parse::<Class>().unwrap_err().contains("layer, head"));
}

#[test]
fn every_class_is_drawn_equally_often_and_half_of_each_is_off_16_bytes() {
    let all = drawn(1);
    for class in Class::ALL {
        let of_class: Vec<_> = all.iter().filter(|drawn| drawn.class == class).collect();
        assert_eq!(of_class.len(), COUNT / Class::ALL.len());
        let off = of_class.iter().filter(|drawn| drawn.is_off_16_bytes()).count();
        assert_eq!(off, of_class.len() / 2, "{class}");
        let different: HashSet<_> = of_class.iter().collect();
        assert!(
            different.len() > of_class.len() * 9 / 10,
            "{class}: {}",
            different.len()
        );
    }
}

/// Rows are on 16 bytes where they are a multiple of so many elements.
#[test]
fn half_of_each_class_is_off_16_bytes_in_any_type() {
    for (dtype, vector) in [(DType::F32, 4), (DType::F16, 8), (DType::BF16, 8)] {
        let all: Vec<_> = Sampler::new(1, &[]).with_dtype(dtype).take(COUNT / 5).collect();
        for class in Class::ALL {
            let of_class = all.iter().filter(|drawn| drawn.class == class);
            let off = of_class.clone().filter(|drawn| drawn.is_off_16_bytes()).count();
            assert_eq!(off, of_class.count() / 2, "{class} of {dtype}");
        }
        for drawn in all.iter().filter(|drawn| !drawn.is_off_16_bytes()) {
            assert!(
                drawn.m == 1 || drawn.n == 1 || drawn.n % vector == 0,
                "rows of the result: {drawn} of {dtype}"
            );
            let aligned = |operand: &sampler::Operand| operand.offset.is_multiple_of(vector);
            assert!(aligned(&drawn.a) && aligned(&drawn.b), "{drawn} of {dtype}");
        }
        let problem = |drawn: &Drawn| drawn.problem(Precision::Fp32);
        assert!(all
            .iter()
            .all(|drawn| problem(drawn).dtype() == dtype && problem(drawn).validate().is_ok()));
    }
}

#[test]
fn all_layouts_and_views_are_drawn() {
    let all = drawn(2);
    for layout in ["NN", "NT", "TN", "TT"] {
        let count = all
            .iter()
            .filter(|drawn| drawn.problem(Precision::Fp32).layout_name() == layout)
            .count();
        assert!(count > COUNT / 100, "{layout}: {count}");
    }
    for view in [
        View::Dense,
        View::Narrowed,
        View::Heads,
        View::Broadcast,
        View::Interleaved,
    ] {
        let count = all
            .iter()
            .filter(|drawn| drawn.a.view == view || drawn.b.view == view)
            .count();
        assert!(count > COUNT / 500, "{}: {count}", view.name());
    }
    assert!(all.iter().any(|drawn| drawn.cold) && all.iter().any(|drawn| !drawn.cold));
}

#[test]
fn a_product_is_a_problem_within_bounds() {
    for drawn in drawn(3) {
        assert_eq!(drawn.problem(Precision::Fp32).validate(), Ok(()), "{drawn}");
        assert!(drawn.flops() <= 2.0 * sampler::MOST_WORK, "{drawn}");
        assert!(4 * drawn.elements() <= sampler::MOST_RESULT_BYTES, "{drawn}");
        assert!(
            4 * (drawn.a.span + drawn.b.span) <= sampler::MOST_OPERAND_BYTES,
            "{drawn}"
        );
        assert!(
            4 * drawn.copied_elements().iter().sum::<usize>() <= sampler::MOST_COPIED_BYTES,
            "{drawn}"
        );
        let sample = drawn.sample(64);
        assert_eq!(sample.len(), 64);
        assert!(
            sample.iter().all(|&element| element < drawn.elements() as u64),
            "{drawn}"
        );
    }
}

#[test]
fn rows_come_from_all_octaves() {
    let mut octaves = [0; 16];
    for drawn in Sampler::new(4, &[Class::Layer]).take(COUNT) {
        octaves[(drawn.batch() * drawn.m).ilog2() as usize] += 1;
    }
    // The bound on the work leaves out some of the largest.
    assert!(octaves[..14].iter().all(|&count| count > COUNT / 40), "{octaves:?}");
}

#[test]
fn views_have_the_strides_of_candle() {
    let candle = |dims: &[usize]| CandleTensor::zeros(dims, candle_core::DType::F32, &Device::Cpu).unwrap();
    let same = |ours: &Tensor, candle: CandleTensor| {
        let (operand, layout) = (ours.operand(), candle.layout());
        let rank = layout.dims().len();
        assert_eq!(ours.matrix(), [layout.dims()[rank - 2], layout.dims()[rank - 1]]);
        assert_eq!(operand.offset, layout.start_offset());
        assert_eq!(operand.layout.row_stride as usize, layout.stride()[rank - 2]);
        assert_eq!(operand.layout.col_stride as usize, layout.stride()[rank - 1]);
        for axis in 0..rank - 2 {
            assert_eq!(
                operand.layout.batch_strides[4 - (rank - 2) + axis] as usize,
                layout.stride()[axis]
            );
        }
    };
    same(&Tensor::dense(&[3, 5]).t(), candle(&[3, 5]).t().unwrap());
    let heads = candle(&[2, 7, 3, 5]).permute((0, 2, 1, 3)).unwrap();
    same(&Tensor::dense(&[2, 7, 3, 5]).permute(&[0, 2, 1, 3]), heads);
    let fused = candle(&[2, 7, 3, 4, 5])
        .get_on_dim(2, 1)
        .unwrap()
        .permute((0, 2, 1, 3))
        .unwrap();
    same(&Tensor::dense(&[2, 7, 3, 4, 5]).at(2, 1).permute(&[0, 2, 1, 3]), fused);
    let narrowed = candle(&[7, 9]).narrow(1, 3, 5).unwrap();
    same(&Tensor::dense(&[7, 9]).narrow(1, 3, 5), narrowed);
    let weights = candle(&[4, 6]).t().unwrap().broadcast_left(3).unwrap();
    same(&Tensor::dense(&[4, 6]).t().repeat(0, 3), weights);
}

/// What candle's matmul takes on a GPU, which has no such test on a CPU.
#[test]
fn what_candle_refuses_is_copied_and_nothing_else() {
    let handed = |tensor: &Tensor| tensor.operand().handed(tensor.matrix(), tensor.batch_dims());
    let taken = [
        (Tensor::dense(&[5, 3, 4]), false, 12),
        (Tensor::dense(&[5, 3, 4]).t(), true, 12),
        (Tensor::dense(&[3, 4]).t().repeat(0, 5), true, 0),
        // The beginning of a cache: matrices lie apart, but evenly.
        (Tensor::dense(&[2, 5, 9, 4]).narrow(2, 0, 3), false, 36),
        (Tensor::dense(&[8, 3, 4]).at(1, 2), false, 0),
    ];
    for (at, (tensor, transposed, stride)) in taken.iter().enumerate().take(4) {
        let handed = handed(tensor);
        assert_eq!(handed.copied, None, "{at}: {tensor:?}");
        assert_eq!((handed.transposed, handed.batch_stride), (*transposed, *stride), "{at}");
    }
    let part = handed(&taken[4].0);
    assert_eq!(part.copied, Some((vec![8, 4], vec![12, 1])));
    let heads = handed(&Tensor::dense(&[2, 7, 3, 4]).permute(&[0, 2, 1, 3]).t());
    assert_eq!(heads.copied, Some((vec![2, 3, 7, 4], vec![84, 4, 12, 1])));
    assert!(heads.transposed && heads.batch_stride == 28);
    // Keys that several heads share.
    let shared = handed(&Tensor::dense(&[2, 3, 7, 4]).repeat(2, 5));
    assert_eq!(shared.copied, Some((vec![2, 3, 5, 7, 4], vec![84, 28, 0, 4, 1])));
    // A single row may be any distance from the next.
    let row = handed(&Tensor::dense(&[1, 6, 4]).at(1, 5));
    assert_eq!((row.copied, row.transposed), (None, false));
}
