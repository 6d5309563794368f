//! Which architectures a build is for, what was asked for held against what the compiler knows, and whose code a device runs. Pure:
//! the build script and its tests include this file.

use std::collections::BTreeSet;

/// Compute capabilities that a build without a GPU and without a wish is for.
pub const ALL: [u32; 6] = [80, 86, 89, 90, 100, 120];

/// The word for [`ALL`] in a list of wishes.
const ALL_WORD: &str = "all";

/// What a build is asked to be for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// These, because `variable` names them, and with `all` also what the compiler knows of [`ALL`].
    Named {
        /// The environment variable that names them.
        variable: &'static str,
        /// Compute capabilities.
        capabilities: Vec<u32>,
        /// Whether [`ALL`] was named too.
        all: bool,
    },
    /// The GPU of this machine.
    Gpu(u32),
    /// Nothing in particular: what the compiler knows of [`ALL`].
    Nothing,
}

/// What a build is for, and what the person who builds should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Ascending, without repetition, at least one.
    pub capabilities: Vec<u32>,
    /// A sentence each.
    pub warnings: Vec<String>,
}

/// The wish that the value of `variable` spells: compute capabilities, or `all`, between commas or spaces.
///
/// # Errors
///
/// If a word is neither, or there is none.
pub fn named(variable: &'static str, list: &str) -> Result<Wish, String> {
    let (mut capabilities, mut all) = (Vec::new(), false);
    for word in list.split([',', ' ']).filter(|word| !word.is_empty()) {
        if word == ALL_WORD {
            all = true;
            continue;
        }
        let digits = word.strip_suffix('a').unwrap_or(word);
        let capability = digits
            .parse()
            .map_err(|_| format!("{variable}='{list}': '{word}' is not a compute capability such as 80 or 90a"))?;
        capabilities.push(capability);
    }
    if capabilities.is_empty() && !all {
        return Err(format!("{variable} is set but names no compute capability"));
    }
    Ok(Wish::Named {
        variable,
        capabilities,
        all,
    })
}

/// What `nvcc --list-gpu-arch` prints, as compute capabilities; `None` if it names none (compilers before CUDA 11.1 do
/// not know the option).
pub fn known_to_nvcc(printed: &str) -> Option<Vec<u32>> {
    let digits = |word: &str| word.strip_prefix("compute_")?.trim_end_matches(['a', 'f']).parse().ok();
    let known: Vec<u32> = printed.split_whitespace().filter_map(digits).collect();
    (!known.is_empty()).then_some(known)
}

/// What to build for. `known` is what the compiler knows, `None` where it did not say: then it is taken to know all.
///
/// # Errors
///
/// If the compiler lacks a capability that was named, or every one that could serve.
pub fn choose(wish: &Wish, known: Option<&[u32]>) -> Result<Choice, String> {
    let knows = |capability: &u32| known.is_none_or(|known| known.contains(capability));
    let list = |capabilities: &[u32]| {
        let words: Vec<String> = capabilities.iter().map(u32::to_string).collect();
        words.join(", ")
    };
    let known_words = || list(known.unwrap_or_default());
    let (here, lacking): (Vec<u32>, Vec<u32>) = ALL.iter().partition(|capability| knows(capability));
    let left_out = || {
        format!(
            "this nvcc does not know compute capability {}, which newer versions of CUDA do: the build has no machine \
             code for it",
            list(&lacking)
        )
    };
    let (mut capabilities, mut warnings) = (Vec::new(), Vec::new());
    match wish {
        Wish::Named {
            variable,
            capabilities: named,
            all,
        } => {
            let unknown: Vec<u32> = named.iter().copied().filter(|capability| !knows(capability)).collect();
            if !unknown.is_empty() {
                return Err(format!(
                    "{variable} asks for compute capability {}, which this nvcc does not know (it knows {}): install a \
                     newer version of CUDA (12.8 for 100 and 120), or ask for others",
                    list(&unknown),
                    known_words()
                ));
            }
            capabilities.extend(named);
            if *all {
                capabilities.extend(&here);
                warnings.extend((!lacking.is_empty()).then(left_out));
            }
        }
        Wish::Gpu(gpu) if knows(gpu) => capabilities.push(*gpu),
        Wish::Gpu(gpu) => {
            // PTX of an older architecture serves a newer GPU.
            let older = here.iter().copied().filter(|capability| capability < gpu).max();
            capabilities.extend(older);
            warnings.extend(older.map(|older| {
                format!(
                    "this machine's GPU has compute capability {gpu}, which this nvcc does not know (it knows {}): it \
                     gets the code for {older}, which is slower; install a newer version of CUDA",
                    known_words()
                )
            }));
        }
        Wish::Nothing => {
            capabilities.extend(&here);
            warnings.extend((!lacking.is_empty()).then(left_out));
        }
    }
    if capabilities.is_empty() {
        return Err(format!(
            "this nvcc knows none of the compute capabilities that the kernels are written for ({}): it knows {}",
            list(&ALL),
            known_words()
        ));
    }
    capabilities.sort_unstable();
    capabilities.dedup();
    Ok(Choice { capabilities, warnings })
}

/// From which values of `__CUDA_ARCH__` on the conditions of a source have another answer than below: 900 for `>= 900`, 860 and 861
/// for `== 860`.
pub fn boundaries(source: &str) -> impl Iterator<Item = u32> + '_ {
    source.split("__CUDA_ARCH__").skip(1).flat_map(|after| {
        let after = after.trim_start();
        let operator = after.split(|c| !"<>=!".contains(c)).next().unwrap_or_default();
        let number = after[operator.len()..].trim_start();
        let digits = number.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let value: Option<u32> = digits.parse().ok().filter(|_| !operator.is_empty());
        let next = value.map(|value| value + 1);
        match operator {
            ">=" | "<" => [value, None],
            ">" | "<=" => [None, next],
            _ => [value, next],
        }
        .into_iter()
        .flatten()
    })
}

/// Boundaries in CUDA's own headers that the kernels include, from 8.0 up, as of CUDA 13.0.
pub const BOUNDARIES_OF_CUDA: [u32; 2] = [900, 1000];

/// Compute capabilities, ascending, in groups between these boundaries. A group has one PTX, from which machine code is made for each of
/// it: PTX takes about as long to make as machine code for one of them.
pub fn compiled_together<'a>(
    capabilities: &'a [u32],
    boundaries: &'a BTreeSet<u32>,
) -> impl Iterator<Item = &'a [u32]> {
    let value = |capability: u32| 10 * capability; // of __CUDA_ARCH__
    capabilities.chunk_by(move |a, b| boundaries.range(value(*a) + 1..=value(*b)).next().is_none())
}

/// The compute capability that code was compiled for which a device of `capability` runs, of a build with machine code for
/// `architectures` and PTX of the lowest of them: machine code serves later devices of its generation, PTX all later ones.
/// `None` if neither does.
pub fn code_for(architectures: &[u32], capability: u32) -> Option<u32> {
    let generation = |capability: u32| capability / 10;
    let machine_code = |&built: &u32| built <= capability && generation(built) == generation(capability);
    let ptx = || {
        architectures
            .iter()
            .copied()
            .min()
            .filter(|&lowest| lowest <= capability)
    };
    architectures.iter().copied().filter(machine_code).max().or_else(ptx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_runs_the_newest_machine_code_of_its_generation_or_else_the_lowest_ptx() {
        assert_eq!(code_for(&[80, 86, 90], 90), Some(90));
        assert_eq!(code_for(&[80, 86, 90], 89), Some(86));
        assert_eq!(code_for(&[80, 89], 86), Some(80));
        assert_eq!(code_for(&[80], 90), Some(80), "from PTX");
        assert_eq!(code_for(&[80, 90], 120), Some(80), "PTX is that of the lowest");
        assert_eq!(code_for(&[90, 100], 103), Some(100));
        assert_eq!(code_for(&[90, 120], 100), Some(90), "from PTX");
        assert_eq!(code_for(&[90], 89), None);
        assert_eq!(code_for(&[80], 75), None);
        assert_eq!(code_for(&[], 90), None);
    }
}
