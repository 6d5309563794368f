//! How k and the tiles of a result are shared among blocks.

pub mod cut;
pub mod parallel;
pub mod stream_k;
pub mod work_queue;
