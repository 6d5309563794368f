//! What kernels were called before, for results and choices that were recorded then.

/// (former, present) parts of names.
const FORMER: [(&str, &str); 4] = [
    ("ffma_grouped_", "ffma_sliced_k_"),
    ("ffma_strips_", "ffma_small_m_"),
    ("_stream_sm90", "_stream_k_sm90"),
    ("_pair_", "_2cta_"),
];

/// What a kernel of this name is called now. Present names stay as they are.
pub fn present_name(name: &str) -> String {
    let mut present = name.to_owned();
    for (before, now) in FORMER {
        present = present.replace(before, now);
    }
    present
}

#[cfg(test)]
mod tests {
    use super::present_name;

    #[test]
    fn parts_of_former_names_are_replaced_once() {
        for (former, present) in [
            ("ffma_grouped_64x128_nn_sm90", "ffma_sliced_k_64x128_nn_sm90"),
            ("ffma_kmajor_64x64_stream_sm90", "ffma_kmajor_64x64_stream_k_sm90"),
            ("gemm_tf32x3_sm90_128x128_pair_tt", "gemm_tf32x3_sm90_128x128_2cta_tt"),
            ("gemv_dot_4", "gemv_dot_4"),
        ] {
            assert_eq!(present_name(former), present);
            assert_eq!(present_name(present), present, "a present name stays");
        }
    }
}
