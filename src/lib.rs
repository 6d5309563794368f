//! FP32 matrix multiplication and transposition for candle.

pub mod gemm;
