// SPDX-License-Identifier: Apache-2.0
//! Converts a core error to the matching Python exception. The error's data becomes attributes, and its hint becomes a
//! note.

use penstock_types::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::import_exception;
use pyo3::prelude::*;

import_exception!(penstock.errors, BudgetExceeded);
import_exception!(penstock.errors, Bug);
import_exception!(penstock.errors, Busy);
import_exception!(penstock.errors, Changed);
import_exception!(penstock.errors, ConfigError);
import_exception!(penstock.errors, Corrupt);
import_exception!(penstock.errors, Deadline);
import_exception!(penstock.errors, Denied);
import_exception!(penstock.errors, Interrupted);
import_exception!(penstock.errors, KeyRefused);
import_exception!(penstock.errors, Mismatch);
import_exception!(penstock.errors, NoSpace);
import_exception!(penstock.errors, NotFound);
import_exception!(penstock.errors, PreconditionFailed);
import_exception!(penstock.errors, RankFailed);
import_exception!(penstock.errors, ServerError);
import_exception!(penstock.errors, SystemFault);
import_exception!(penstock.errors, Throttled);
import_exception!(penstock.errors, Unreachable);
import_exception!(penstock.errors, Unsupported);

/// Returns the Python exception for a core error.
pub fn raise(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    let hint = error.hint();
    build(py, error, text, hint).unwrap_or_else(|failure| {
        // Setting an attribute fails only while the interpreter shuts down.
        PyRuntimeError::new_err(failure.to_string())
    })
}

fn build(py: Python<'_>, error: Error, text: String, hint: Option<String>) -> PyResult<PyErr> {
    macro_rules! made {
        ($class:ident $(, $fact:literal = $value:expr)*) => {{
            let made = $class::new_err(text);
            let _value = made.value(py);
            $( _value.setattr($fact, $value)?; )*
            made
        }};
    }
    // The match has no wildcard, so a new variant does not compile until it has a Python class.
    let made = match error {
        Error::NotFound { place } => made!(NotFound, "where" = place),
        Error::Denied { place, reason: _ } | Error::Untrusted { place, reason: _ } => made!(Denied, "where" = place),
        Error::Throttled { place, refused, sent, window, retry_after: _, status: _ } => {
            made!(Throttled, "where" = place, "refused" = refused, "sent" = sent, "window_s" = window.as_secs_f64())
        }
        Error::Unreachable { place, reason: _ } => made!(Unreachable, "where" = place),
        Error::Server { place, status, reason: _ } => made!(ServerError, "where" = place, "status" = status),
        Error::Deadline { what: _, limit } => made!(Deadline, "limit_s" = limit.as_secs_f64()),
        Error::Corrupt { place, problem: _ } => made!(Corrupt, "where" = place),
        Error::Mismatch { place, problem: _ } => made!(Mismatch, "where" = place),
        Error::Changed { place, want, have } => made!(Changed, "where" = place, "want" = want, "have" = have),
        Error::Precondition { place, reason: _ } => made!(PreconditionFailed, "where" = place),
        Error::Busy { place, holder: _ } => made!(Busy, "where" = place),
        Error::Config { what, problem: _ } => made!(ConfigError, "where" = what),
        Error::Unsupported { what: _, by } => made!(Unsupported, "where" = by),
        Error::BudgetExceeded { what: _, need, budget } => made!(BudgetExceeded, "need" = need, "budget" = budget),
        Error::NoSpace { place, need, free } => made!(NoSpace, "where" = place, "need" = need, "free" = free),
        Error::KeyRefused { key, place, reason: _ } => made!(KeyRefused, "where" = place, "key" = key),
        Error::System { place, reason: _ } => made!(SystemFault, "where" = place),
        Error::RankFailed { rank, reason: _ } => made!(RankFailed, "rank" = rank),
        Error::Interrupted => made!(Interrupted),
        Error::Bug { what: _ } => made!(Bug),
    };
    if let Some(hint) = hint {
        made.value(py).call_method1("add_note", (hint,))?;
    }
    Ok(made)
}
