//! What the environment asks for: every variable of this crate, read and understood in one place.

use crate::precision::Precision;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Names the precision of products for which the program sets none: `fp32`, `fp32-strict` or `tf32`.
pub const PRECISION_VARIABLE: &str = "CANDLE_SGEMM_PRECISION";
/// A [switch](Settings): every new problem is tuned.
pub const TUNE_VARIABLE: &str = "CANDLE_SGEMM_TUNE";
/// Names another folder than the user's cache folder for what tuning chose and `calibrate` fitted.
pub const CACHE_VARIABLE: &str = "CANDLE_SGEMM_CACHE";
/// What the preloaded library reports: see [`Log`].
pub const LOG_VARIABLE: &str = "CANDLE_SGEMM_LOG";
/// A [switch](Settings): the preloaded library times every new shape beside cuBLAS.
pub const TIME_VARIABLE: &str = "CANDLE_SGEMM_TIME";
/// A [switch](Settings): the preloaded library does nothing.
pub const DISABLE_VARIABLE: &str = "CANDLE_SGEMM_DISABLE";
/// NVIDIA's own: `0` keeps its libraries from TF32, whatever a program allows them.
pub const NVIDIA_TF32_VARIABLE: &str = "NVIDIA_TF32_OVERRIDE";

/// What the preloaded library reports on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Log {
    /// What keeps it from working.
    #[default]
    Nothing,
    /// What became of the calls, when the program ends.
    Summary,
    /// Each call, and the summary.
    Calls,
}

/// What the environment asks for. A variable that is unset or empty asks for nothing. One that is not understood is an error of
/// that setting alone, and the text says what it may be.
///
/// Switches are on with `1`, `on`, `yes` or `true` and off with `0`, `off`, `no` or `false`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// [`PRECISION_VARIABLE`].
    pub precision: Result<Option<Precision>, String>,
    /// Whether [`NVIDIA_TF32_VARIABLE`] is 0.
    pub without_tf32: bool,
    /// [`TUNE_VARIABLE`].
    pub tune: Result<bool, String>,
    /// [`CACHE_VARIABLE`].
    pub cache: Option<PathBuf>,
    /// [`LOG_VARIABLE`].
    pub log: Result<Log, String>,
    /// [`TIME_VARIABLE`].
    pub time: Result<bool, String>,
    /// [`DISABLE_VARIABLE`].
    pub disable: Result<bool, String>,
}

impl Settings {
    /// The settings of this process, as they were when they were first asked for.
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(Settings::read)
    }

    /// The settings of this process, as they are now.
    pub fn read() -> Settings {
        Settings::from(|name| std::env::var_os(name))
    }

    /// The settings that a look-up of variables makes.
    pub fn from(variable: impl Fn(&str) -> Option<OsString>) -> Settings {
        let present = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| match present(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(raw)) => Err(format!("{name}={raw:?} is not text")),
        };
        let switch = |name: &str| match text(name)?.map(|text| text.to_ascii_lowercase()).as_deref() {
            None | Some("0" | "off" | "no" | "false") => Ok(false),
            Some("1" | "on" | "yes" | "true") => Ok(true),
            Some(other) => Err(format!("{name}: unknown value '{other}': choose 0 or 1")),
        };
        let precision = |name: &str| match text(name)? {
            None => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|error: String| format!("{name}: {error}")),
        };
        let log = |name: &str| match text(name)?.as_deref() {
            None => Ok(Log::Nothing),
            Some("summary") => Ok(Log::Summary),
            Some("calls") => Ok(Log::Calls),
            Some(other) => Err(format!("{name}: unknown value '{other}': choose one of summary, calls")),
        };
        Settings {
            precision: precision(PRECISION_VARIABLE),
            without_tf32: text(NVIDIA_TF32_VARIABLE).is_ok_and(|value| value.is_some_and(|value| value.trim() == "0")),
            tune: switch(TUNE_VARIABLE),
            cache: present(CACHE_VARIABLE).map(PathBuf::from),
            log: log(LOG_VARIABLE),
            time: switch(TIME_VARIABLE),
            disable: switch(DISABLE_VARIABLE),
        }
    }

    /// The folder for what is measured once and kept; `None` if the user has none.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        let of_user = || dirs::cache_dir().map(|cache| cache.join(env!("CARGO_PKG_NAME")));
        self.cache.clone().or_else(of_user)
    }

    /// The precision of a product for which this crate was told none, where `allowed` is what the program allows to others
    /// (to cuBLAS by the call, to candle by its switch): the one that the environment names, or else what is allowed. TF32 that
    /// NVIDIA's variable forbids becomes FP32.
    ///
    /// # Errors
    ///
    /// If [`PRECISION_VARIABLE`] is not understood.
    pub fn precision_where_allowed(&self, allowed: Precision) -> Result<Precision, String> {
        Ok(match (self.precision.clone()?, allowed) {
            (Some(named), _) => named,
            (None, Precision::Tf32) if self.without_tf32 => Precision::Fp32,
            (None, allowed) => allowed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let map: HashMap<&str, &str> = variables.iter().copied().collect();
        Settings::from(|name| map.get(name).map(OsString::from))
    }

    const SWITCHES: [&str; 3] = [TUNE_VARIABLE, TIME_VARIABLE, DISABLE_VARIABLE];

    fn switch<'a>(settings: &'a Settings, name: &str) -> &'a Result<bool, String> {
        match name {
            TUNE_VARIABLE => &settings.tune,
            TIME_VARIABLE => &settings.time,
            _ => &settings.disable,
        }
    }

    #[test]
    fn an_empty_environment_asks_for_nothing_and_empty_variables_are_like_none() {
        let nothing = settings(&[]);
        assert_eq!(nothing.precision, Ok(None));
        assert_eq!((nothing.without_tf32, &nothing.cache), (false, &None));
        assert_eq!(nothing.log, Ok(Log::Nothing));
        let empty = [
            PRECISION_VARIABLE,
            NVIDIA_TF32_VARIABLE,
            CACHE_VARIABLE,
            LOG_VARIABLE,
            TUNE_VARIABLE,
            TIME_VARIABLE,
            DISABLE_VARIABLE,
        ];
        assert_eq!(settings(&empty.map(|name| (name, ""))), nothing);
    }

    #[test]
    fn switches_know_yes_from_no_and_say_what_they_do_not_know() {
        for name in SWITCHES {
            for (values, expected) in [
                (["0", "no", "off", "false", "No", "OFF"], false),
                (["1", "yes", "on", "true", "Yes", "TRUE"], true),
            ] {
                for value in values {
                    assert_eq!(
                        switch(&settings(&[(name, value)]), name),
                        &Ok(expected),
                        "{name}={value}"
                    );
                }
            }
            for value in ["2", "maybe", " ", "nope"] {
                let settings = settings(&[(name, value)]);
                let error = switch(&settings, name).as_ref().unwrap_err();
                assert!(error.contains(name) && error.contains("0 or 1"), "{error}");
                // The others are as if it were not there.
                for other in SWITCHES.into_iter().filter(|other| *other != name) {
                    assert_eq!(switch(&settings, other), &Ok(false));
                }
            }
        }
    }

    #[test]
    fn precisions_are_those_that_exist() {
        for precision in Precision::ALL {
            let named = settings(&[(PRECISION_VARIABLE, &precision.to_string())]);
            assert_eq!(named.precision, Ok(Some(precision)));
        }
        let error = settings(&[(PRECISION_VARIABLE, "fp8")]).precision.unwrap_err();
        assert!(
            error.contains(PRECISION_VARIABLE) && error.contains("fp32-strict"),
            "{error}"
        );
    }

    /// The environment's word for this crate stands above what is allowed to others, and NVIDIA's variable only takes TF32 away
    /// that was allowed to others.
    #[test]
    fn precision_is_the_environments_or_what_is_allowed_less_what_nvidia_forbids() {
        for named in [
            None,
            Some(Precision::Fp32),
            Some(Precision::Fp32Strict),
            Some(Precision::Tf32),
        ] {
            for nvidia in ["", "0", "1"] {
                for allowed in Precision::ALL {
                    let text = named.map_or(String::new(), |precision| precision.to_string());
                    let settings = settings(&[(PRECISION_VARIABLE, &text), (NVIDIA_TF32_VARIABLE, nvidia)]);
                    let expected = match (named, allowed, nvidia) {
                        (Some(named), ..) => named,
                        (None, Precision::Tf32, "0") => Precision::Fp32,
                        (None, allowed, _) => allowed,
                    };
                    assert_eq!(settings.precision_where_allowed(allowed), Ok(expected));
                }
            }
        }
        let unknown = settings(&[(PRECISION_VARIABLE, "fp8")]);
        assert!(unknown.precision_where_allowed(Precision::Fp32).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_may_have_any_name_and_other_values_must_be_text() {
        use std::os::unix::ffi::OsStringExt;
        let raw = OsString::from_vec(vec![b'/', 0xff]);
        let settings = Settings::from(|_| Some(raw.clone()));
        assert_eq!(settings.cache, Some(PathBuf::from(&raw)));
        for error in [
            settings.tune.unwrap_err(),
            settings.precision.unwrap_err(),
            settings.log.unwrap_err(),
        ] {
            assert!(error.contains("is not text"), "{error}");
        }
    }
}
