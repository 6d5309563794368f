//! The families of kernels. Each function makes a row of the table: it takes what a row says, fills in what its family has in
//! common, and derives the rest. Tiles come as `[BM, BN, BK]`, `[WM, WN]`, `[TM, TN]`, stages: of a block, a warp and a thread.

pub(super) mod brief;
pub(super) mod ffma;
pub(super) mod ffma_sm90;
pub(super) mod gemv;
pub(super) mod ladder;
pub(super) mod row;
pub(super) mod tensor_core;
pub(super) mod thin;
