//! A cache of keys and values with room for so many tokens, and a decoder's step on it.

use super::super::attention::step;
use super::super::matmul::Gemm;
use super::attention::attend;
use candle_core::{bail, DType, Device, Result, Tensor};

/// Cosines and sines of a rotary embedding, a row for each position: the halves (x, y) of a query or key become `x·cos − y·sin` and
/// `x·sin + y·cos`, as `candle_nn::rotary_emb::rope` has it.
#[derive(Clone, Debug)]
pub struct Rotation {
    cosines: Tensor,
    sines: Tensor,
}

impl Rotation {
    /// These cosines and sines, (positions, width / 2) each.
    ///
    /// # Errors
    ///
    /// Tables of another rank, or of different shapes, types or devices.
    pub fn new(cosines: &Tensor, sines: &Tensor) -> Result<Self> {
        let alike = cosines.dims() == sines.dims()
            && cosines.dtype() == sines.dtype()
            && cosines.device().same_device(sines.device());
        if cosines.rank() != 2 || !alike {
            bail!(
                "a rotation has cosines and sines (positions, width / 2) of one type on one device, not {:?} {:?} and {:?} {:?}",
                cosines.dtype(),
                cosines.dims(),
                sines.dtype(),
                sines.dims()
            );
        }
        Ok(Rotation {
            cosines: cosines.contiguous()?,
            sines: sines.contiguous()?,
        })
    }

    /// The cosines (positions, width / 2).
    pub fn cosines(&self) -> &Tensor {
        &self.cosines
    }

    /// The sines (positions, width / 2).
    pub fn sines(&self) -> &Tensor {
        &self.sines
    }
}

/// Keys and values of a layer, for as many tokens as it has places. Its size never changes and the position is a tensor, so a step can be
/// recorded in a CUDA graph once and replayed for every token.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_sgemm::blocks::{KvCache, Rotation};
///
/// let (heads, queries, width, device) = (2, 3, 16, Device::Cpu);
/// let cache = KvCache::new(1, heads, 10, width, DType::F32, &device)?;
/// let angles = Tensor::arange(0f32, 10., &device)?.reshape((10, 1))?.broadcast_as((10, width / 2))?;
/// let rotation = Rotation::new(&angles.cos()?, &angles.sin()?)?;
/// for position in 0..3u32 {
///     // What one product of the layers for queries, keys and values gives.
///     let rows = Tensor::randn(0f32, 1., (1, (queries + 2) * heads * width), &device)?;
///     let position = Tensor::new(&[position], &device)?;
///     let context = cache.attend_step(&rows, &rotation, &position, 0.25)?;
///     assert_eq!(context.dims(), [1, heads * queries * width]);
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    /// Keys, then values: (2, batch, heads, places, width).
    cache: Tensor,
    /// 0, 1, … of the places.
    places: Tensor,
    /// What is added to the scores of places that are seen, and of those that are not.
    seen: Tensor,
    unseen: Tensor,
}

impl KvCache {
    /// An empty cache for `batch` sequences, with so many heads of keys, of this width, and so many places.
    ///
    /// # Errors
    ///
    /// A size of 0; a type without infinity; if there is no room for it.
    pub fn new(batch: usize, heads: usize, places: usize, width: usize, dtype: DType, device: &Device) -> Result<Self> {
        if [batch, heads, places, width].contains(&0) || !dtype.is_float() || u32::try_from(places).is_err() {
            bail!(
                "a cache has sequences, heads, places and a width of at least 1, and numbers that are fractions, not {batch} × {heads} × \
                 {places} × {width} of {dtype:?}"
            );
        }
        let seen = Tensor::zeros(places, dtype, device)?;
        Ok(KvCache {
            cache: Tensor::zeros((2, batch, heads, places, width), dtype, device)?,
            places: Tensor::arange(0, places as u32, device)?,
            unseen: Tensor::full(f32::NEG_INFINITY, places, device)?.to_dtype(dtype)?,
            seen,
        })
    }

    /// An empty cache of the same size.
    ///
    /// # Errors
    ///
    /// If there is no room for it.
    pub fn emptied(&self) -> Result<Self> {
        Ok(KvCache {
            cache: self.cache.zeros_like()?,
            places: self.places.clone(),
            seen: self.seen.clone(),
            unseen: self.unseen.clone(),
        })
    }

    /// The keys (batch, heads, places, width): a view.
    ///
    /// # Errors
    ///
    /// Those of candle, which makes the view.
    pub fn keys(&self) -> Result<Tensor> {
        self.cache.get(0)
    }

    /// The values (batch, heads, places, width): a view.
    ///
    /// # Errors
    ///
    /// Those of candle, which makes the view.
    pub fn values(&self) -> Result<Tensor> {
        self.cache.get(1)
    }

    /// A step: rotates queries and the new key, puts key and value at `position` (1), a `u32`, and returns what the queries find in the
    /// places up to there, (batch, heads·queries·width).
    ///
    /// `rows` is (batch, (heads·queries + 2·heads)·width), as the product of [`Linear::side_by_side`](crate::Linear::side_by_side) layers
    /// leaves it: all queries, those that share a key next to each other, then the keys, then the values. The scores' factor is `scale`.
    /// What an earlier step wrote at later places is not seen; where candle's operations compute on a GPU, it must not be NaN or infinite.
    ///
    /// In f32, f16 and bf16 on a CUDA device it is one kernel, for up to 8 queries a key and widths up to 128 that are multiples of 8
    /// (f32) or 16; otherwise candle's operations. Rotations are computed in FP32 there, and the cache has them rounded to its type. No
    /// gradient flows.
    ///
    /// A position must be one of the cache's places. A kernel cannot report an invalid one: it writes nothing
    /// then, and attends over the whole cache.
    ///
    /// # Errors
    ///
    /// Rows, rotation or position of other shapes, types or devices than the cache's; on the CPU a position that is no place.
    pub fn attend_step(&self, rows: &Tensor, rotation: &Rotation, position: &Tensor, scale: f64) -> Result<Tensor> {
        let queries = self.check(rows, rotation, position)?;
        let rows = &rows.detach();
        let operands = step::Operands {
            cache: &self.cache,
            rows,
            cosines: &rotation.cosines,
            sines: &rotation.sines,
            position,
            queries,
        };
        match step::attend(&operands, scale)? {
            Some(context) => Ok(context),
            None => self.composed(rows, rotation, position, scale, queries),
        }
    }

    /// Queries that share a key.
    fn check(&self, rows: &Tensor, rotation: &Rotation, position: &Tensor) -> Result<usize> {
        let &[_, batch, heads, places, width] = self.cache.dims() else {
            bail!("a cache has five dimensions");
        };
        let queries = match *rows.dims() {
            [of_batch, row] if of_batch == batch && row % (heads * width) == 0 && row / (heads * width) > 2 => {
                row / (heads * width) - 2
            }
            _ => bail!(
                "a step on a cache of {batch} sequences and {heads} heads of width {width} has rows ({batch}, (queries + 2)·{}), not {:?}",
                heads * width,
                rows.dims()
            ),
        };
        let [positions, half] = *rotation.cosines.dims() else {
            bail!("a rotation is (positions, width / 2)");
        };
        if 2 * half != width || positions < places {
            bail!(
                "a cache of {places} places and width {width} has a rotation of so many positions and half that width, not ({positions}, {half})"
            );
        }
        let one = |t: &Tensor| t.dtype() == self.cache.dtype() && t.device().same_device(self.cache.device());
        if !one(rows) || !one(&rotation.cosines) {
            bail!(
                "a cache of {:?} has rows and a rotation of that type on its device, not {:?} and {:?}",
                self.cache.dtype(),
                rows.dtype(),
                rotation.cosines.dtype()
            );
        }
        if position.dims() != [1] || position.dtype() != DType::U32 || !position.device().same_device(rows.device()) {
            bail!(
                "a position is a u32 of shape [1] on the cache's device, not {:?} {:?}",
                position.dtype(),
                position.dims()
            );
        }
        Ok(queries)
    }

    /// By candle's operations.
    fn composed(
        &self,
        rows: &Tensor,
        rotation: &Rotation,
        position: &Tensor,
        scale: f64,
        queries: usize,
    ) -> Result<Tensor> {
        let (_, batch, heads, places, width) = self.cache.dims5()?;
        let rotated_heads = heads * (queries + 1);
        let rows = rows.reshape((batch, rotated_heads + heads, 1, width))?;
        let table = |table: &Tensor| table.index_select(position, 0);
        let (cosines, sines) = (table(&rotation.cosines)?, table(&rotation.sines)?);
        let rotated = rows.narrow(1, 0, rotated_heads)?.contiguous()?;
        let rotated = candle_nn::rotary_emb::rope(&rotated, &cosines, &sines)?;
        let part = |t: &Tensor, first: usize| t.narrow(1, first, heads)?.unsqueeze(0);
        let new = Tensor::cat(&[&part(&rotated, heads * queries)?, &part(&rows, rotated_heads)?], 0)?;
        let place = position.broadcast_as(new.shape())?.contiguous()?;
        self.cache.scatter_set(&place, &new, 3)?;
        let query = rotated.narrow(1, 0, heads * queries)?;
        let query = query.reshape((batch, heads, queries, 1, width))?;
        let (keys, values) = (self.keys()?.unsqueeze(2)?, self.values()?.unsqueeze(2)?);
        let gemm = Gemm::new();
        let context = match position.device() {
            // What is not seen is not read.
            Device::Cpu => {
                let seen = position.to_vec1::<u32>()?[0] as usize + 1;
                let part = |t: &Tensor| t.narrow(3, 0, seen);
                attend(&gemm, &query, &part(&keys)?, &part(&values)?, scale, None)?
            }
            _ => {
                let later = self.places.broadcast_gt(position)?;
                let mask = later.where_cond(&self.unseen, &self.seen)?.reshape((1, places))?;
                attend(&gemm, &query, &keys, &values, scale, Some(&mask))?
            }
        };
        context.reshape((batch, heads * queries * width))
    }
}
