// SPDX-License-Identifier: Apache-2.0
//! The tier book: what a store of a name and a year allows. Data only; `limits` enforces it.
//!
//! Every number stands with its unit, scope, source and date. A name without a year means the latest year of it.

use penstock_types::{Error, Result};
use serde::Deserialize;

/// A tier's page in the book.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// `azure-hot`, without the year.
    pub name: String,
    /// The year that its numbers are of.
    pub year: u16,
    /// One line for people.
    pub title: String,
    /// Rates, each with its scope.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
    /// Time to first byte.
    #[serde(default)]
    pub latency: Vec<Latency>,
    /// How far bytes above a limit may queue before the answer is 503.
    pub queue: Option<Number>,
    /// Requests above a limit that pass at once, in seconds of that limit.
    pub burst: Option<Number>,
    /// Form of a refusal.
    #[serde(default)]
    pub throttle: Throttle,
    /// Observations of studies; never enforced.
    #[serde(default, rename = "observed")]
    pub observations: Vec<Observation>,
}

/// Quantity that a limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Bytes read from the store.
    ReadBytes,
    /// Bytes written to it.
    WriteBytes,
    /// GET, HEAD and LIST requests.
    ReadRequests,
    /// PUT, POST and DELETE requests.
    WriteRequests,
    /// Requests of either kind.
    Requests,
}

impl What {
    fn unit(self) -> &'static str {
        match self {
            Self::ReadBytes | Self::WriteBytes => "bytes/s",
            Self::ReadRequests | Self::WriteRequests | Self::Requests => "requests/s",
        }
    }
}

/// Who shares a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Everything that the endpoint serves.
    Account,
    /// One bucket (the endpoint has one).
    Bucket,
    /// Keys up to the last `/`.
    Prefix,
    /// One connection.
    Connection,
}

/// A rate.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Quantity that it applies to.
    pub what: What,
    /// Who shares it.
    pub scope: Scope,
    /// Units per second.
    pub value: f64,
    /// `bytes/s` or `requests/s`.
    pub unit: String,
    /// Where the number is from.
    pub source: String,
    /// When it was read there.
    pub as_of: String,
    /// How far it can be trusted.
    pub confidence: Confidence,
    /// Anything else to know.
    #[serde(default)]
    pub note: String,
}

/// How far a number can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The provider (or study) prints it.
    Published,
    /// Arithmetic on published numbers.
    Derived,
    /// Said in words or by third parties; not checked.
    Unverified,
    /// No source has it: our choice.
    Ours,
}

/// Whose latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// GET, HEAD and LIST.
    Read,
    /// PUT, POST and DELETE, after the body has arrived.
    Write,
}

/// A distribution of times to the first byte, by two of its quantiles; lognormal between and beyond. Where it has a tail
/// apart, that share of the requests takes that long.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Whose.
    pub what: Kind,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Of all requests, those in the tail; 0 to 1.
    #[serde(default)]
    pub tail_share: f64,
    /// Latency of the requests in the tail.
    #[serde(default)]
    pub tail_ms: f64,
    /// Where the numbers are from.
    pub source: String,
    /// When they were read there.
    pub as_of: String,
    /// How far they can be trusted.
    pub confidence: Confidence,
    /// Anything else to know.
    #[serde(default)]
    pub note: String,
}

/// A number with its source.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Where it is from.
    pub source: String,
    /// When it was read there.
    pub as_of: String,
    /// How far it can be trusted.
    pub confidence: Confidence,
    /// Anything else to know.
    #[serde(default)]
    pub note: String,
}

/// Observation of a study through its own path (a mount, for example): for reports and rehearsals.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// Its name: `fuse-reader-bytes`.
    pub what: String,
    /// Whom it is of.
    pub scope: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Where it is from.
    pub source: String,
    /// When it was read there.
    pub as_of: String,
    /// How far it can be trusted.
    pub confidence: Confidence,
    /// Anything else to know.
    #[serde(default)]
    pub note: String,
}

/// Form of a refusal. The status is 503, as S3 answers; the text is the provider's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// The message of the error.
    pub message: String,
    /// Seconds in `Retry-After`, where the provider sends one.
    #[serde(default)]
    pub retry_after_s: Option<u32>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { message: "Please reduce your request rate.".to_owned(), retry_after_s: None }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    schema_version: u32,
    #[serde(rename = "tier")]
    tiers: Vec<Tier>,
}

impl Tier {
    /// The tier of that name (`azure-hot`, `azure-hot@2021`) in a book's TOML text.
    pub fn named(book: &str, name: &str) -> Result<Self> {
        let tiers = Self::all(book)?;
        let wanted = |tier: &&Self| tier.name == name || format!("{}@{}", tier.name, tier.year) == name;
        tiers.iter().filter(wanted).max_by_key(|tier| tier.year).cloned().ok_or_else(|| {
            let mut known: Vec<String> = tiers.iter().flat_map(|tier| [tier.name.clone(), tier.label()]).collect();
            known.sort();
            known.dedup();
            Error::config("tier", format!("`{name}` is none of {}", known.join(", ")))
        })
    }

    /// Every tier of a book, checked.
    pub fn all(book: &str) -> Result<Vec<Self>> {
        let bad = |problem: String| Error::config("tier book", problem);
        let book: Book = toml::from_str(book).map_err(|error| bad(error.to_string()))?;
        if book.schema_version != 1 {
            return Err(bad(format!("schema_version {} is not 1", book.schema_version)));
        }
        for (place, tier) in book.tiers.iter().enumerate() {
            tier.check().map_err(|problem| bad(format!("{}: {problem}", tier.label())))?;
            if book.tiers[..place].iter().any(|other| other.label() == tier.label()) {
                return Err(bad(format!("{} stands twice", tier.label())));
            }
        }
        Ok(book.tiers)
    }

    /// `azure-hot@2021`.
    pub fn label(&self) -> String {
        format!("{}@{}", self.name, self.year)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let positive = |what: &str, value: f64| {
            if value.is_finite() && value > 0.0 { Ok(()) } else { Err(format!("{what} {value} is not positive")) }
        };
        for limit in &self.limits {
            positive("limit", limit.value)?;
            if limit.unit != limit.what.unit() {
                return Err(format!("unit `{}` of {:?} is not {}", limit.unit, limit.what, limit.what.unit()));
            }
        }
        for latency in &self.latency {
            positive("p50_ms", latency.p50_ms)?;
            if !(latency.p99_ms >= latency.p50_ms && latency.p99_ms.is_finite()) {
                return Err(format!("p99_ms {} is below p50_ms {}", latency.p99_ms, latency.p50_ms));
            }
            let is_time = (0.0..f64::INFINITY).contains(&latency.tail_ms);
            if !((0.0..=1.0).contains(&latency.tail_share) && is_time) {
                return Err(format!("a tail of {} of the requests and {} ms", latency.tail_share, latency.tail_ms));
            }
        }
        for number in [&self.queue, &self.burst].into_iter().flatten() {
            positive("queue or burst", number.value)?;
            if number.unit != "s" {
                return Err(format!("unit `{}` of queue or burst is not s", number.unit));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOK: &str = include_str!("../../../python/penstock/price/books/tiers.toml");

    #[test]
    fn book_as_shipped_has_the_tiers_that_the_project_promises() {
        for name in ["none", "s3-standard", "gcs-standard", "azure-hot", "azure-premium", "azure-hot@2021"] {
            Tier::named(BOOK, name).unwrap();
        }
        assert!(Tier::named(BOOK, "none").unwrap().limits.is_empty());
    }

    #[test]
    fn named_unknown_tier_lists_the_known_ones() {
        let error = Tier::named(BOOK, "azure-lukewarm").unwrap_err().to_string();
        assert!(error.contains("`azure-lukewarm` is none of") && error.contains("azure-hot@2021"), "{error}");
    }

    #[test]
    fn all_bad_numbers_are_refused() {
        let limit = "[[tier.limit]]\nwhat='read-bytes'\nscope='account'\nunit='bytes/s'\nsource='s'\nas_of='2026'\nconfidence='ours'\n";
        let head = "schema_version=1\n[[tier]]\nname='t'\nyear=2026\ntitle='t'\n";
        assert!(Tier::all(&format!("{head}{limit}value=1.0\n")).is_ok());
        for bad in ["value=0.0\n", "value=-1.0\n", "value=nan\n", "value=inf\n", "value=1.0\ncolour='red'\n", ""] {
            let error = Tier::all(&format!("{head}{limit}{bad}")).unwrap_err();
            assert_eq!(error.code(), "config", "{bad}");
        }
        let late =
            "[[tier.latency]]\nwhat='read'\np50_ms=2.0\np99_ms=1.0\nsource='s'\nas_of='2026'\nconfidence='ours'\n";
        assert!(Tier::all(&format!("{head}{late}")).is_err());
    }
}
