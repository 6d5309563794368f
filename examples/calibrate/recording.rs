//! What was measured, in a file.

use crate::shapes::Subject;
use crate::support::case::{Case, Layout};
use anyhow::{bail, Context, Result};
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::kernel::former_names::present_name;
use candle_sgemm::gemm::operands::MAX_BATCH_DIMS;
use candle_sgemm::gemm::tune::fit::Timed;
use candle_sgemm::gemm::{DType, ElementTypes, FoldedProblem, GemmProblem, OperandLayout, Precision};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// What a shape is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum List {
    /// To fit to.
    Fit,
    /// To judge on.
    HeldOut,
    /// The shapes of `ladder --grid`, to judge on.
    Grid,
}

impl List {
    pub const ALL: [List; 3] = [List::Fit, List::HeldOut, List::Grid];

    pub const fn name(self) -> &'static str {
        match self {
            List::Fit => "to fit to",
            List::HeldOut => "held out",
            List::Grid => "grid",
        }
    }
}

/// Where an operand lies: [`OperandLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    row_stride: i64,
    col_stride: i64,
    batch_strides: [i64; MAX_BATCH_DIMS],
    align: u32,
}

impl Place {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing is measured then
    const fn of(layout: OperandLayout) -> Self {
        Place {
            row_stride: layout.row_stride,
            col_stride: layout.col_stride,
            batch_strides: layout.batch_strides,
            align: layout.align,
        }
    }

    const fn layout(&self) -> OperandLayout {
        OperandLayout::strided(self.row_stride, self.col_stride)
            .with_batch_strides(self.batch_strides)
            .with_align(self.align)
    }
}

/// Operands that are views, as the planner sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Views {
    /// Matrices along each dimension of the batch.
    batch_dims: [usize; MAX_BATCH_DIMS],
    a: Place,
    b: Place,
    d: Place,
}

/// A product and the times of its plans.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shape {
    pub list: List,
    pub layout: String,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    /// Whether B was kept out of the L2.
    pub cold: bool,
    /// What the elements are.
    #[serde(default = "f32_name")]
    pub dtype: String,
    /// How the operands lie, where that is not known by `layout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub views: Option<Views>,
    /// Kernels that were left out, as `--exclude` names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
    pub plans: Vec<Timed>,
}

/// What was measured before other types were.
fn f32_name() -> String {
    DType::F32.name().into()
}

impl Shape {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing is measured then
    pub fn new(list: List, subject: &Subject, exclude: Option<&str>, plans: Vec<Timed>) -> Self {
        let problem = &subject.problem;
        Shape {
            list,
            layout: problem.layout_name(),
            m: problem.m,
            n: problem.n,
            k: problem.k,
            batch: problem.batch(),
            cold: subject.cold,
            dtype: problem.dtype().name().into(),
            views: Some(Views {
                batch_dims: problem.batch_dims,
                a: Place::of(problem.a),
                b: Place::of(problem.b),
                d: Place::of(problem.d),
            }),
            exclude: exclude.map(Into::into),
            plans,
        }
    }

    /// The problem as the planner sees it, at the precision that allows every kernel.
    ///
    /// # Errors
    ///
    /// If the layout or the type has no such name, or the sizes are no product's.
    pub fn problem(&self) -> Result<FoldedProblem> {
        let dtype: DType = self.dtype.parse().map_err(anyhow::Error::msg)?;
        let Some(views) = &self.views else {
            let layout: Layout = self.layout.parse().map_err(anyhow::Error::msg)?;
            let case = Case {
                batch: self.batch,
                cold: self.cold,
                ..Case::new(self.m, self.n, self.k, layout)
            };
            return Ok(Subject::of_case(&case, dtype)?.problem);
        };
        let mut problem = GemmProblem::new(self.m, self.n, self.k, views.a.layout(), views.b.layout());
        problem.batch_dims = views.batch_dims;
        problem.d = views.d.layout();
        problem.types = ElementTypes::all_of(dtype);
        problem.precision = Precision::Tf32;
        problem.folded().map_err(anyhow::Error::msg)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape {
            layout,
            dtype,
            m,
            n,
            k,
            batch,
            ..
        } = self;
        let cold = if self.cold { ", cold" } else { "" };
        write!(f, "{dtype} {layout} {batch} × {m}×{n}×{k}{cold}")
    }
}

/// All that was measured in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    /// The name of the GPU.
    pub gpu: String,
    pub device: DeviceInfo,
    /// The version of this crate.
    pub version: String,
    /// UTC, `YYYY-MM-DDTHH:MM:SSZ`.
    pub date: String,
    /// How many blocks of a kernel a multiprocessor holds.
    pub blocks_per_multiprocessor: HashMap<String, u32>,
    pub shapes: Vec<Shape>,
}

impl Recording {
    /// # Errors
    ///
    /// If the file cannot be read, or is none of these.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut recording: Recording =
            serde_json::from_slice(&text).with_context(|| format!("{} is not a recording", path.display()))?;
        for timed in recording.shapes.iter_mut().flat_map(|shape| &mut shape.plans) {
            timed.kernel = present_name(&timed.kernel);
        }
        Ok(recording)
    }

    /// The shapes of several recordings of one GPU.
    ///
    /// # Errors
    ///
    /// If there is none, one cannot be read, or they are of different GPUs.
    pub fn read_all(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut all: Option<Recording> = None;
        for path in paths {
            let other = Recording::read(path.as_ref())?;
            match &mut all {
                None => all = Some(other),
                Some(all) if all.gpu == other.gpu => {
                    all.blocks_per_multiprocessor.extend(other.blocks_per_multiprocessor);
                    all.shapes.extend(other.shapes);
                    all.date = all.date.clone().max(other.date);
                }
                Some(all) => bail!(
                    "{} was recorded on an {}, and what comes before it on an {}: fit to each by itself",
                    path.as_ref().display(),
                    other.gpu,
                    all.gpu
                ),
            }
        }
        all.context("no recording was named")
    }

    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_vec(self)?).with_context(|| format!("cannot write {}", path.display()))
    }
}
