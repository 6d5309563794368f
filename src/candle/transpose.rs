//! `transpose`, `permute` and `contiguous` at the speed of a copy, and the custom op behind them.

use super::call::Call;
use super::fallback::is_served;
use super::layout::elements;
use crate::transpose::{cpu, TransposeProblem};
use candle_core::shape::{Dim, Dims};
#[cfg(feature = "cuda")]
use candle_core::{backend::BackendStorage, cuda_backend::CudaStorageSlice, CudaStorage};
use candle_core::{bail, CpuStorage, CustomOp1, DType, Error, Layout, Result, Shape, Tensor};

const NAME: &str = "permute";

/// `x` with two dimensions exchanged, contiguous: `x.transpose(dim1, dim2)?.contiguous()` at the speed of a copy.
///
/// - `x` is a view with any strides, of any rank; it is not copied first. Where the result already lies in order (a
///   dimension of 1, or a view that is transposed back) it shares the storage of `x`, as candle's `contiguous` does.
/// - Every dtype that candle stores in whole bytes, on the CPU and, with the feature `cuda`, on CUDA devices of compute
///   capability 8.0 and newer; the rest goes to candle.
/// - Gradients flow, and arrive contiguous.
///
/// # Errors
///
/// As `Tensor::transpose`: a dimension out of range, naming the shape.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::arange(0u32, 24, &Device::Cpu)?.reshape((2, 3, 4))?;
/// let y = candle_sgemm::transpose(&x, 1, 2)?;
/// assert_eq!(y.dims(), [2, 4, 3]);
/// assert!(y.is_contiguous());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn transpose<D1: Dim, D2: Dim>(x: &Tensor, dim1: D1, dim2: D2) -> Result<Tensor> {
    let transposed = || {
        let dim1 = dim1.to_index(x.shape(), "transpose")?;
        let dim2 = dim2.to_index(x.shape(), "transpose")?;
        permuted(x, exchanged(x.rank(), dim1, dim2))
    };
    explain("transpose", x, transposed())
}

/// `x` with its dimensions in the order `dims`, contiguous: `x.permute(dims)?.contiguous()` at the speed of a copy.
///
/// As [`transpose`] in everything else.
///
/// # Errors
///
/// As `Tensor::permute`: a dimension out of range or named twice, or too few of them, naming the shape.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
///
/// let pixels = Tensor::zeros((8, 32, 32, 3), DType::U8, &Device::Cpu)?;
/// assert_eq!(candle_sgemm::permute(&pixels, (0, 3, 1, 2))?.dims(), [8, 3, 32, 32]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn permute<Order: Dims>(x: &Tensor, dims: Order) -> Result<Tensor> {
    let in_order = || {
        let dims = dims.to_indexes(x.shape(), NAME)?;
        if dims.len() != x.rank() {
            bail!(
                "{NAME}: the order {dims:?} names {} of the {} dimensions of a tensor of shape {:?}",
                dims.len(),
                x.rank(),
                x.shape()
            );
        }
        permuted(x, dims)
    };
    explain(NAME, x, in_order())
}

/// Transposition as methods of `Tensor`.
pub trait TransposeExt {
    /// The last two dimensions exchanged, contiguous: `self.t()?.contiguous()` at the speed of a copy. See
    /// [`transpose`].
    ///
    /// # Errors
    ///
    /// As `Tensor::t`: a rank below 2.
    fn t_contiguous(&self) -> Result<Tensor>;

    /// The same elements, contiguous: a drop-in for `Tensor::contiguous` that moves permuted, narrowed and broadcast views
    /// with this crate's kernels. A tensor that is contiguous already is returned as it is.
    ///
    /// # Errors
    ///
    /// As `Tensor::contiguous`.
    fn contiguous_fast(&self) -> Result<Tensor>;
}

impl TransposeExt for Tensor {
    fn t_contiguous(&self) -> Result<Tensor> {
        let rank = self.rank();
        if rank < 2 {
            let error = Error::UnexpectedNumberOfDims {
                expected: 2,
                got: rank,
                shape: self.shape().clone(),
            };
            return explain("t_contiguous", self, Err(error.bt()));
        }
        explain(
            "t_contiguous",
            self,
            permuted(self, exchanged(rank, rank - 2, rank - 1)),
        )
    }

    fn contiguous_fast(&self) -> Result<Tensor> {
        explain("contiguous_fast", self, permuted(self, (0..self.rank()).collect()))
    }
}

/// So many dimensions in order, but for two.
fn exchanged(rank: usize, dim1: usize, dim2: usize) -> Vec<usize> {
    let mut dims: Vec<usize> = (0..rank).collect();
    dims.swap(dim1, dim2);
    dims
}

/// The result of the call `name` with `x`, or an error that says so.
fn explain<T>(name: &'static str, x: &Tensor, result: Result<T>) -> Result<T> {
    let operands = &[("x", Some(x))];
    Call { name, operands }.explain(result)
}

/// `dims` is a permutation of the dimensions of `x`.
fn permuted(x: &Tensor, dims: Vec<usize>) -> Result<Tensor> {
    let Some(count) = elements(x.dims()) else {
        bail!(
            "{NAME}: a tensor of shape {:?} has more elements than any memory holds",
            x.shape()
        );
    };
    let whole_bytes = !matches!(x.dtype(), DType::F6E2M3 | DType::F6E3M2 | DType::F4);
    // Candle does what is no movement at all without a copy.
    if !whole_bytes || count == 0 || x.layout().permute(&dims)?.is_contiguous() || !is_served(x.device())? {
        let in_order = dims.iter().enumerate().all(|(i, &dim)| i == dim);
        return if in_order {
            x.contiguous()
        } else {
            x.permute(dims)?.contiguous()
        };
    }
    x.apply_op1(Permute { dims })
}

/// The dimensions in this order, written out.
#[derive(Clone, Debug)]
struct Permute {
    dims: Vec<usize>,
}

impl Permute {
    fn problem(&self, layout: &Layout, element_size: usize) -> Result<(TransposeProblem, Shape)> {
        let problem = TransposeProblem::permutation(layout.dims(), layout.stride(), &self.dims, element_size)
            .map_err(Error::wrap)?;
        let shape: Vec<usize> = self.dims.iter().map(|&dim| layout.dims()[dim]).collect();
        Ok((problem, shape.into()))
    }
}

fn cpu_permute<T: Copy + Default + Send + Sync>(problem: &TransposeProblem, src: &[T], start: usize) -> Result<Vec<T>> {
    let elements = problem.elements();
    // `vec!` ends the program where there is no memory, but gets it cleared by the system: ask first.
    if let Err(error) = Vec::<T>::new().try_reserve_exact(elements) {
        bail!("{NAME}: there is no memory for the {elements} elements of {problem}: {error}");
    }
    let mut dst = vec![T::default(); elements];
    cpu::permute(problem, &src[start..], &mut dst).map_err(Error::wrap)?;
    Ok(dst)
}

impl CustomOp1 for Permute {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let start = layout.start_offset();
        macro_rules! permuted {
            ($($variant:ident),*) => {
                match storage {
                    $(CpuStorage::$variant(src) => {
                        let (problem, shape) = self.problem(layout, std::mem::size_of_val(&src[0]))?;
                        (CpuStorage::$variant(cpu_permute(&problem, src, start)?), shape)
                    })*
                    CpuStorage::F6E2M3(_) | CpuStorage::F6E3M2(_) | CpuStorage::F4(_) => {
                        bail!("{NAME}: elements of less than a byte cannot be moved one by one")
                    }
                }
            };
        }
        Ok(permuted!(U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F8E8M0))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let device = storage.device();
        macro_rules! permuted {
            ($($variant:ident),*) => {
                match &storage.slice {
                    $(CudaStorageSlice::$variant(src) => {
                        let (dst, shape) = cuda::permute(self, src, layout, device)?;
                        (CudaStorageSlice::$variant(dst), shape)
                    })*
                    CudaStorageSlice::F6E2M3(_) | CudaStorageSlice::F6E3M2(_) | CudaStorageSlice::F4(_) => {
                        bail!("{NAME}: elements of less than a byte cannot be moved one by one")
                    }
                }
            };
        }
        let (slice, shape) = permuted!(U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F8E8M0);
        let device = device.clone();
        Ok((CudaStorage { slice, device }, shape))
    }

    fn bwd(&self, x: &Tensor, _result: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let mut back = vec![0; self.dims.len()];
        for (to, &from) in self.dims.iter().enumerate() {
            back[from] = to;
        }
        let back = permuted(grad, back).map(Some);
        let operands = &[("x", Some(x))];
        Call { name: NAME, operands }.explain_gradient(back)
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Error, Layout, Permute, Result, Shape};
    use crate::device::CurrentContext;
    use crate::transpose::{cache, launch};
    use candle_core::cuda_backend::WrapErr;
    use candle_core::CudaDevice;
    use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr};

    /// Moves the elements of `src` on candle's stream into fresh memory.
    pub(super) fn permute<T: DeviceRepr>(
        op: &Permute,
        src: &CudaSlice<T>,
        layout: &Layout,
        device: &CudaDevice,
    ) -> Result<(CudaSlice<T>, Shape)> {
        let size = std::mem::size_of::<T>();
        let (problem, shape) = op.problem(layout, size)?;
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().w()?;
        let context = CurrentContext::get().map_err(Error::wrap)?;

        // SAFETY: every element is written by the launch below before anything reads it on this stream.
        let mut dst = unsafe { device.alloc::<T>(problem.elements()) }?;
        {
            // The guards order this stream's work after what other streams still do with the memory.
            let (src_start, _src_guard) = src.device_ptr(&stream);
            let (dst_start, _dst_guard) = dst.device_ptr_mut(&stream);
            let src_start = src_start + (layout.start_offset() * size) as u64;
            let align = 1usize << (src_start | dst_start).trailing_zeros().min(8);
            let plan = cache::plan(&context, problem.aligned_to(align)).map_err(Error::wrap)?;
            // SAFETY: candle's storage holds every element that its layout reaches, in device memory of this stream's
            // context, and the alignment is that of the addresses; the destination is fresh memory of the result's size;
            // the guards keep both until the stream has passed the launch.
            unsafe { launch::launch(&plan, src_start, dst_start, stream.cu_stream()) }.map_err(Error::wrap)?;
        }
        Ok((dst, shape))
    }
}
