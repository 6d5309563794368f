//! Kernels that measurement chose, kept in a file of the user's cache folder from one process to the next.

use crate::error::report;
use crate::gemm::kernel::former_names::present_name;
use crate::gemm::problem::FoldedProblem;
use crate::gemm::schedule::cut::Cut;
use crate::settings::Settings;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

/// What measurement chose for one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// A name of the kernel table.
    pub kernel: String,
    /// How k is cut.
    pub cut: Cut,
    /// Whether A and B are repacked beforehand.
    #[serde(default)]
    pub repacked: [bool; 2],
    /// Its time, in µs.
    pub us: f64,
}

/// The software that a time was measured with, beside this crate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Software {
    /// The version of CUDA that the driver brings: 1000 × major + 10 × minor, as the driver says it.
    pub cuda: i32,
    /// The driver's own version, where the system tells it.
    pub driver: Option<String>,
}

impl Software {
    /// The version of the driver that a text of the system names: its first word of numbers with dots between them.
    pub fn driver_version_in(text: &str) -> Option<&str> {
        let is_version = |word: &&str| {
            let mut parts = word.split('.');
            word.contains('.') && parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
        };
        text.split_whitespace().find(is_version)
    }

    /// The name of the file of the choices for the GPU of this name.
    pub fn file_name(&self, gpu: &str) -> String {
        let (major, minor) = (self.cuda / 1000, self.cuda % 1000 / 10);
        let driver = self.driver.as_ref().map(|driver| format!("-driver-{driver}"));
        let driver = driver.unwrap_or_default();
        let words = format!("{gpu}-cuda-{major}.{minor}{driver}-v{}", env!("CARGO_PKG_VERSION"));
        plain_file_name(&words)
    }
}

/// The name of a JSON file that is called after these words.
pub(super) fn plain_file_name(words: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    words.chars().map(plain).chain(".json".chars()).collect()
}

/// The choices for one GPU, its software and version of this crate, by problem.
#[derive(Debug)]
pub struct Choices {
    path: Option<PathBuf>,
    known: RwLock<HashMap<String, Choice>>,
    /// Held while something is measured.
    measuring: Mutex<()>,
}

impl Choices {
    /// The choices in the user's cache folder (or where [`Settings::cache`] points) for the GPU of this name. A file that
    /// cannot be understood is left out, with a line on stderr; without a cache folder nothing is kept.
    pub fn of_user(gpu: &str, software: &Software) -> Self {
        let folder = Settings::read().cache_folder();
        Choices::in_file(folder.map(|folder| folder.join(software.file_name(gpu))))
    }

    /// The choices in this file; kept for the length of this process only if there is none.
    pub fn in_file(path: Option<PathBuf>) -> Self {
        let known = path.as_deref().map(read_or_warn).unwrap_or_default();
        Choices {
            path,
            known: RwLock::new(known),
            measuring: Mutex::default(),
        }
    }

    /// What was chosen for this problem.
    pub fn get(&self, problem: &FoldedProblem) -> Option<Choice> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&key(problem)).cloned()
    }

    /// What `use_choice` makes of the choice for this problem; where there is none that it can use, `measure` makes one, which is
    /// kept. One thread measures at a time, for two would measure each other, and one problem is measured once. What is known
    /// can be looked up meanwhile.
    ///
    /// # Errors
    ///
    /// As `measure`; then nothing is kept. A choice that cannot be written to the file is reported on stderr and known in this
    /// process.
    pub fn get_or_measure<T, E>(
        &self,
        problem: &FoldedProblem,
        use_choice: impl Fn(&Choice) -> Option<T>,
        measure: impl FnOnce() -> Result<(T, Option<Choice>), E>,
    ) -> Result<T, E> {
        let known = || self.get(problem).as_ref().and_then(&use_choice);
        if let Some(found) = known() {
            return Ok(found);
        }
        let _alone = self.measuring.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known() {
            return Ok(found);
        }
        let (found, choice) = measure()?;
        if let Some(Err(error)) = choice.map(|choice| self.insert(problem, choice)) {
            report(format_args!(
                "cannot keep a kernel choice for the next process: {error}"
            ));
        }
        Ok(found)
    }

    /// Keeps a choice. Other processes may do the same at the same time: what they wrote stays.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; in this process the choice is known all the same.
    pub fn insert(&self, problem: &FoldedProblem, choice: Choice) -> io::Result<()> {
        {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(key(problem), choice.clone());
        }
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

/// Equal problems have equal keys.
fn key(problem: &FoldedProblem) -> String {
    format!("{:?}", **problem)
}

fn read(path: &Path) -> io::Result<HashMap<String, Choice>> {
    let mut choices: HashMap<String, Choice> = serde_json::from_slice(&fs::read(path)?)?;
    for choice in choices.values_mut() {
        choice.kernel = present_name(&choice.kernel);
    }
    Ok(choices)
}

fn read_or_warn(path: &Path) -> HashMap<String, Choice> {
    read(path).unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            report(format_args!(
                "ignoring the kernel choices in {}: {error}",
                path.display()
            ));
        }
        HashMap::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::problem::GemmProblem;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Far longer than anything here takes: who waits so long waits for ever.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn row_major(m: usize, n: usize, k: usize) -> FoldedProblem {
        GemmProblem::row_major(m, n, k).folded().unwrap()
    }

    fn choice(kernel: &str) -> Choice {
        Choice {
            kernel: kernel.into(),
            cut: Cut::Cluster(2),
            repacked: [false, true],
            us: 12.5,
        }
    }

    #[test]
    fn a_choice_with_a_former_name_is_one_of_the_present_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("choices.json");
        let problem = row_major(16, 4096, 4096);
        let former = Choices::in_file(Some(path.clone()));
        former.insert(&problem, choice("ffma_strips_16_sm90")).unwrap();
        let kernel = Choices::in_file(Some(path)).get(&problem).unwrap().kernel;
        assert_eq!(kernel, "ffma_small_m_16_sm90");
        assert!(crate::gemm::kernel::table::find(&kernel).is_ok());
    }

    #[test]
    fn a_choice_is_there_for_the_next_process_and_beside_that_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/choices.json");
        let (small, large) = (row_major(8, 8, 8), row_major(64, 64, 64));
        let one = Choices::in_file(Some(path.clone()));
        let other = Choices::in_file(Some(path.clone()));
        one.insert(&small, choice("first")).unwrap();
        other.insert(&large, choice("second")).unwrap();
        let next = Choices::in_file(Some(path));
        assert_eq!(next.get(&small), Some(choice("first")));
        assert_eq!(next.get(&large), Some(choice("second")));
        assert_eq!(next.get(&row_major(8, 8, 9)), None);
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
                        let problem = row_major(writer, size, 1);
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
                assert!(all.get(&row_major(writer, size, 1)).is_some(), "{writer} {size}");
            }
        }
    }

    #[test]
    fn a_corrupt_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("choices.json");
        fs::write(&path, "{ half a fi").unwrap();
        let problem = row_major(3, 4, 5);
        let choices = Choices::in_file(Some(path.clone()));
        assert_eq!(choices.get(&problem), None);
        choices.insert(&problem, choice("again")).unwrap();
        assert_eq!(Choices::in_file(Some(path)).get(&problem), Some(choice("again")));
    }

    #[test]
    fn a_problem_and_its_folded_form_share_a_choice() {
        let mut batched = GemmProblem::row_major(4, 8, 8);
        batched.batch_dims = [1, 1, 1, 3];
        batched.a.batch_strides = [0, 0, 0, 32];
        batched.d.batch_strides = [0, 0, 0, 32];
        let choices = Choices::in_file(None);
        choices.insert(&batched.folded().unwrap(), choice("folded")).unwrap();
        assert!(choices.get(&row_major(12, 8, 8)).is_some());
    }

    /// While something is measured, what is known is found, and nobody else measures.
    #[test]
    fn a_measurement_keeps_nobody_from_what_is_known_and_is_made_once() {
        let choices = Choices::in_file(None);
        let (known, slow) = (row_major(2, 3, 4), row_major(5, 6, 7));
        choices.insert(&known, choice("known")).unwrap();
        let name = |choice: &Choice| Some(choice.kernel.clone());
        let measured = AtomicUsize::new(0);
        let (begun, wait_for_begin) = mpsc::channel();
        let (go_on, wait_for_end) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (choices, slow, measured) = (&choices, &slow, &measured);
            let first = scope.spawn(move || {
                choices.get_or_measure(slow, name, || {
                    begun.send(()).unwrap();
                    measured.fetch_add(1, Ordering::SeqCst);
                    wait_for_end
                        .recv_timeout(PATIENCE)
                        .expect("the others got on meanwhile");
                    Ok::<_, ()>(("slow".to_string(), Some(choice("slow"))))
                })
            });
            wait_for_begin.recv_timeout(PATIENCE).unwrap();
            let second = scope.spawn(move || {
                choices.get_or_measure(slow, name, || {
                    measured.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, ()>(("again".to_string(), Some(choice("again"))))
                })
            });
            let found = choices.get_or_measure(&known, name, || Err("measured what is known"));
            assert_eq!(found.as_deref(), Ok("known"));
            go_on.send(()).unwrap();
            for thread in [first, second] {
                assert_eq!(thread.join().unwrap().as_deref(), Ok("slow"));
            }
        });
        assert_eq!(measured.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failed_measurement_keeps_nothing_and_a_choice_of_no_use_is_replaced() {
        let choices = Choices::in_file(None);
        let problem = row_major(2, 3, 4);
        let usable = |choice: &Choice| (choice.kernel == "new").then_some(());
        assert_eq!(choices.get_or_measure(&problem, usable, || Err("no")), Err("no"));
        assert_eq!(
            choices.get_or_measure(&problem, usable, || Ok::<_, &str>(((), None))),
            Ok(())
        );
        assert_eq!(choices.get(&problem), None);
        choices.insert(&problem, choice("of an older build")).unwrap();
        let measure = || Ok::<_, &str>(((), Some(choice("new"))));
        assert_eq!(choices.get_or_measure(&problem, usable, measure), Ok(()));
        assert_eq!(choices.get(&problem), Some(choice("new")));
        assert_eq!(choices.get_or_measure(&problem, usable, || Err("again")), Ok(()));
    }

    #[test]
    fn the_file_is_named_after_what_was_measured_with_what() {
        let software = |driver: Option<&str>| Software {
            cuda: 12_040,
            driver: driver.map(String::from),
        };
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            software(Some("550.54.15")).file_name("NVIDIA H100 80GB HBM3"),
            format!("NVIDIA-H100-80GB-HBM3-cuda-12.4-driver-550.54.15-v{version}.json")
        );
        assert_eq!(
            software(None).file_name("A/B"),
            format!("A-B-cuda-12.4-v{version}.json")
        );
    }

    #[test]
    fn the_drivers_version_is_read_from_what_the_system_says() {
        for (text, version) in [
            ("580.159.04\n", Some("580.159.04")),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n\
                 GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
                Some("580.95.05"),
            ),
            ("NVRM version: none", None),
            ("1 . .. 5. .5 a.1", None),
            ("", None),
        ] {
            assert_eq!(Software::driver_version_in(text), version, "{text}");
        }
    }
}
