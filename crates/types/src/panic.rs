// SPDX-License-Identifier: Apache-2.0
//! Catches panics of libraries that process untrusted input, without printing the panics.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Nesting depth of [`catch_panic`] calls on this thread.
    static CAUGHT: Cell<usize> = const { Cell::new(0) };
}

/// Error for a call that panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

/// Runs `call` and converts a panic on this thread to an error, without printing it.
///
/// The first use wraps the process's panic hook. Other panics still go to the previous hook.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // A thread that is ending no longer has this counter, so its panics are printed.
            if CAUGHT.try_with(Cell::get).unwrap_or(0) == 0 {
                before(info);
            }
        }));
    });
    CAUGHT.set(CAUGHT.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(call));
    CAUGHT.set(CAUGHT.get() - 1);
    result.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catch_panic_returns_the_value_or_the_panic() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(catch_panic(|| -> u8 { panic!("hostile") }), Err(Panicked));
        let nested = catch_panic(|| catch_panic(|| -> u8 { panic!("hostile") }));
        assert_eq!(nested, Ok(Err(Panicked)));
        assert_eq!(CAUGHT.get(), 0);
    }

    /// The panic hook is global to the process, so a child process runs this test alone and its output is checked.
    #[test]
    fn catch_panic_prints_nothing_and_panics_elsewhere_still_print() {
        const ROLE: &str = "catch_panic_prints_nothing_and_panics_elsewhere_still_print";
        if std::env::args().any(|argument| argument == "--include-ignored") {
            assert!(catch_panic(|| panic!("hidden panic")).is_err());
            let _ = std::thread::spawn(|| panic!("visible panic")).join();
            return;
        }
        let program = std::env::current_exe().unwrap();
        let name = format!("panic::tests::{ROLE}");
        let child = std::process::Command::new(program)
            .args(["--exact", &name, "--nocapture", "--include-ignored"])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&child.stderr).into_owned();
        assert!(child.status.success(), "{printed}");
        assert!(printed.contains("visible panic") && !printed.contains("hidden panic"), "{printed}");
    }
}
