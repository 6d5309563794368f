//! Kernels that measurement chose, kept in a file of the user's cache folder from one process to the next.

use super::problem::GemmProblem;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Names another folder than the user's cache folder for the file.
pub const CACHE_VARIABLE: &str = "CANDLE_SGEMM_CACHE";

/// What measurement chose for one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// A name of the kernel table.
    pub kernel: String,
    /// Slices of k.
    pub split_k: u32,
    /// Ranges into which stream-K cuts k; 0: none.
    #[serde(default)]
    pub stream_ranges: u32,
    /// Whether A and B are written anew beforehand.
    #[serde(default)]
    pub repacked: [bool; 2],
    /// Its time, in µs.
    pub us: f64,
}

/// The choices for one GPU, driver and version of this crate, by problem.
#[derive(Debug)]
pub struct Choices {
    path: Option<PathBuf>,
    known: HashMap<String, Choice>,
}

impl Choices {
    /// The choices in the user's cache folder (or where [`CACHE_VARIABLE`] points) for the GPU of this name. A file that
    /// cannot be understood is left out, with a line on stderr; without a cache folder nothing is kept.
    pub fn of_user(gpu: &str, driver: &str) -> Self {
        let folder = match std::env::var_os(CACHE_VARIABLE) {
            Some(folder) => Some(PathBuf::from(folder)),
            None => dirs::cache_dir().map(|cache| cache.join(env!("CARGO_PKG_NAME"))),
        };
        let words = format!("{gpu}-driver-{driver}-v{}", env!("CARGO_PKG_VERSION"));
        let name: String = words
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .collect();
        Choices::in_file(folder.map(|folder| folder.join(format!("{name}.json"))))
    }

    /// The choices in this file; kept for the length of this process only if there is none.
    pub fn in_file(path: Option<PathBuf>) -> Self {
        let known = path.as_deref().map(read_or_warn).unwrap_or_default();
        Choices { path, known }
    }

    /// What was chosen for this problem.
    pub fn get(&self, problem: &GemmProblem) -> Option<&Choice> {
        self.known.get(&key(problem))
    }

    /// Keeps a choice. Other processes may do the same at the same time: what they wrote stays.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; in this process the choice is known all the same.
    pub fn insert(&mut self, problem: &GemmProblem, choice: Choice) -> io::Result<()> {
        self.known.insert(key(problem), choice.clone());
        let Some(path) = &self.path else {
            return Ok(());
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let lock = File::create(path.with_extension("lock"))?;
        lock.lock()?;
        let mut all = read(path).unwrap_or_default();
        all.insert(key(problem), choice);
        // Readers do not lock: they see the old file or the new one.
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec_pretty(&all)?)?;
        fs::rename(fresh, path)?;
        lock.unlock()
    }
}

/// Equal problems have equal keys; the folded problem is what a kernel sees.
fn key(problem: &GemmProblem) -> String {
    format!("{:?}", problem.folded())
}

fn read(path: &Path) -> io::Result<HashMap<String, Choice>> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn read_or_warn(path: &Path) -> HashMap<String, Choice> {
    read(path).unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            eprintln!(
                "candle-sgemm: ignoring the kernel choices in {}: {error}",
                path.display()
            );
        }
        HashMap::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(kernel: &str) -> Choice {
        Choice {
            kernel: kernel.into(),
            split_k: 2,
            stream_ranges: 0,
            repacked: [false, true],
            us: 12.5,
        }
    }

    #[test]
    fn a_choice_is_there_for_the_next_process_and_beside_that_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/choices.json");
        let (small, large) = (GemmProblem::row_major(8, 8, 8), GemmProblem::row_major(64, 64, 64));
        let mut one = Choices::in_file(Some(path.clone()));
        let mut other = Choices::in_file(Some(path.clone()));
        one.insert(&small, choice("first")).unwrap();
        other.insert(&large, choice("second")).unwrap();
        let next = Choices::in_file(Some(path));
        assert_eq!(next.get(&small), Some(&choice("first")));
        assert_eq!(next.get(&large), Some(&choice("second")));
        assert_eq!(next.get(&GemmProblem::row_major(8, 8, 9)), None);
    }

    #[test]
    fn many_writers_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("choices.json");
        std::thread::scope(|scope| {
            for writer in 1..9 {
                let path = path.clone();
                scope.spawn(move || {
                    for size in 1..9 {
                        let problem = GemmProblem::row_major(writer, size, 1);
                        Choices::in_file(Some(path.clone()))
                            .insert(&problem, choice("any"))
                            .unwrap();
                    }
                });
            }
        });
        let all = Choices::in_file(Some(path));
        for writer in 1..9 {
            for size in 1..9 {
                assert!(
                    all.get(&GemmProblem::row_major(writer, size, 1)).is_some(),
                    "{writer} {size}"
                );
            }
        }
    }

    #[test]
    fn a_corrupt_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("choices.json");
        fs::write(&path, "{ half a fi").unwrap();
        let problem = GemmProblem::row_major(3, 4, 5);
        let mut choices = Choices::in_file(Some(path.clone()));
        assert_eq!(choices.get(&problem), None);
        choices.insert(&problem, choice("again")).unwrap();
        assert_eq!(Choices::in_file(Some(path)).get(&problem), Some(&choice("again")));
    }

    #[test]
    fn a_problem_and_its_folded_form_share_a_choice() {
        let mut batched = GemmProblem::row_major(4, 8, 8);
        batched.batch_dims = [1, 1, 1, 3];
        batched.a.batch_strides = [0, 0, 0, 32];
        batched.d.batch_strides = [0, 0, 0, 32];
        let mut choices = Choices::in_file(None);
        choices.insert(&batched, choice("folded")).unwrap();
        assert!(choices.get(&GemmProblem::row_major(12, 8, 8)).is_some());
    }
}
