//! What an error from inside a recording means, and what to do about it.

/// Parts of what candle and CUDA say, what they stand for, and what helps.
const REASONS: [(&[&str], &str); 7] = [
    (
        &["to_cpu_storage", "clone_dtoh", "memcpy_dtoh"],
        "it reads elements of a tensor on the host (to_vec, to_scalar, a copy to the CPU, printing), which a recording cannot \
         wait for: return that tensor as one more output and read it after the run",
    ),
    (
        &["cannot upload uncached host data"],
        "it makes a tensor of more than 4096 bytes from the host's memory (Tensor::new, from_vec, arange, a mask): make it once, \
         outside of the function, or pass it as an input",
    ),
    (
        &["missing cached host data", "param cache miss"],
        "it copies numbers from the host that it did not copy in the runs before: they depend on something other than the \
         inputs, or on a thread; pass them as an input",
    ),
    (
        &["CAPTURE_ISOLATION", "CAPTURE_UNJOINED", "CAPTURE_UNMATCHED"],
        "it works on another stream than that of the device, or waits for one",
    ),
    (
        &["CUDA_ERROR_INVALID_VALUE"],
        "it may have dropped a tensor that was made before, as a model does that replaces what it keeps: such memory cannot be \
         freed while a graph is recorded. Write it in place instead, or pass it as an input and return it as an output",
    ),
    (
        &["CAPTURE_IMPLICIT"],
        "it uses CUDA's legacy default stream, which cannot be recorded",
    ),
    (
        &["CAPTURE_UNSUPPORTED", "CAPTURE_INVALIDATED", "CAPTURE_WRONG_THREAD", "NOT_PERMITTED"],
        "it waits for the device, or allocates memory other than in the order of the stream: no synchronize in the function",
    ),
];

/// What the error's text stands for; `None`: something else.
pub(super) fn reason(error: &str) -> Option<&'static str> {
    let known = REASONS
        .iter()
        .find(|(parts, _)| parts.iter().any(|part| error.contains(part)));
    known.map(|(_, reason)| *reason)
}

/// The error, after what it stands for.
pub(super) fn explain(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    match reason(&text) {
        Some(reason) => format!("{reason} ({})", without_backtrace(&text)),
        None => text,
    }
}

/// The text up to the frames that candle puts after it where `RUST_BACKTRACE` is set.
fn without_backtrace(text: &str) -> &str {
    let is_frame = |line: &str| {
        let number = line.trim_start().split(':').next().unwrap_or_default();
        line.starts_with(' ') && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        if is_frame(line) {
            break;
        }
        end += line.len();
    }
    text[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_reason() {
        for (text, word) in [
            (
                "to_cpu_storage during CUDA graph capture: host/device copies are not permitted",
                "to_vec",
            ),
            ("CUDA graph capture cannot upload uncached host data", "4096"),
            (
                "h2d param cache miss during CUDA graph capture: warmup did not",
                "pass them as an input",
            ),
            (
                "DriverError(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, \"dependency created\")",
                "another stream",
            ),
            (
                "DriverError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, \"operation not permitted\")",
                "synchronize",
            ),
        ] {
            let found = explain(&text);
            assert!(found.contains(word) && found.contains(text), "{found}");
        }
        assert_eq!(explain(&"no such weight"), "no such weight");
        let traced = "cannot upload uncached host data\n   0: candle_core::error::Error::bt\n   1: main\n";
        assert!(
            explain(&traced).ends_with("(cannot upload uncached host data)"),
            "{}",
            explain(&traced)
        );
    }
}
