//! What was measured, in a file.

use crate::support::case::{Case, Layout};
use anyhow::{bail, Context, Result};
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::tune::fit::Timed;
use candle_sgemm::gemm::{DType, GemmProblem, Precision};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
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
    pub plans: Vec<Timed>,
}

impl Shape {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing is measured then
    pub fn new(list: List, case: &Case, plans: Vec<Timed>) -> Self {
        Shape {
            list,
            layout: case.layout.to_string(),
            m: case.m,
            n: case.n,
            k: case.k,
            batch: case.batch,
            cold: case.cold,
            plans,
        }
    }

    /// The problem as the planner sees it, at the precision that allows every kernel.
    ///
    /// # Errors
    ///
    /// If the layout has no such name, or the sizes are no product's.
    pub fn problem(&self) -> Result<GemmProblem> {
        let layout: Layout = self.layout.parse().map_err(anyhow::Error::msg)?;
        let case = Case {
            batch: self.batch,
            cold: self.cold,
            ..Case::new(self.m, self.n, self.k, layout)
        };
        problem_of(&case)
    }
}

/// The problem of a case as the planner sees it, at the precision that allows every kernel.
///
/// # Errors
///
/// If it is none.
pub fn problem_of(case: &Case) -> Result<GemmProblem> {
    let problem = case.problem(DType::F32, Precision::Tf32, false);
    problem.validate().map_err(anyhow::Error::msg)?;
    Ok(problem.folded())
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
        serde_json::from_slice(&text).with_context(|| format!("{} is not a recording", path.display()))
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
