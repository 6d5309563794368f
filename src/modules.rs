//! The machine code that `build.rs` embedded, and what the compiler said of it.

/// Gives embedded machine code the alignment that the driver reads it with.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

/// One compiled `.cu` file.
pub struct Module {
    /// Its path below `cuda/`, without the extension.
    pub file: &'static str,
    image: &'static Aligned<[u8]>,
}

impl Module {
    /// The fatbin, as `cuModuleLoadData` takes it.
    pub fn image(&self) -> &'static [u8] {
        &self.image.0
    }
}

/// What a kernel uses on one architecture, as `ptxas` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The kernel's symbol.
    pub entry: &'static str,
    /// Compute capability, e.g. 90.
    pub capability: u32,
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of statically allocated shared memory a block.
    pub static_shared: u32,
    /// Bytes a thread that spills write and read.
    pub spilled: u32,
}

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The compute capabilities that this build has machine code for.
pub fn architectures() -> &'static [u32] {
    ARCHITECTURES
}

/// What `ptxas` reported for every kernel and architecture of this build.
pub fn resources() -> &'static [Resources] {
    RESOURCES
}

/// The module compiled from `cuda/FILE.cu`, or `None` where no architecture of this build has it.
pub fn module(file: &str) -> Option<&'static Module> {
    MODULES.iter().find(|module| module.file == file)
}
