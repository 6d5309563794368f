//! From a plan to a running kernel: its arguments and tensor maps, which are plain data, its workspace, and the one unsafe
//! step.

pub mod args;
#[cfg(feature = "cuda")]
pub(crate) mod journal;
#[cfg(feature = "cuda")]
pub(in crate::gemm) mod room;
pub mod spread;
#[cfg(feature = "cuda")]
pub(in crate::gemm) mod submit;
pub mod tensor_map;
#[cfg(feature = "cuda")]
pub(in crate::gemm) mod workspace;

#[cfg(feature = "cuda")]
pub use submit::launch;
#[cfg(feature = "cuda")]
pub(crate) use submit::launch_as_node;
