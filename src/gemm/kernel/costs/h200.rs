//! An H200's costs: as yet those of an H100, for none were fitted on one.

pub(super) use super::h100::{KERNELS, SHARED};

pub(super) const GPU: &str = "NVIDIA H100 80GB HBM3";
