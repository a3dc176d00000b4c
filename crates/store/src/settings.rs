// SPDX-License-Identifier: Apache-2.0
//! Store settings that are not part of a URL. They are parsed once from the environment. Their `Debug` output contains
//! no secrets.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use penstock_types::{Error, Result, Url, duration};

use crate::scoped_settings::{is_below, tenants};
use crate::{AzureSettings, GcsSettings, HdfsSettings, HubSettings, LocalReads, RetryPolicy};

/// Settings for all kinds of stores.
#[derive(Debug, Clone, Default)]
pub struct StoreSettings {
    /// Settings for S3.
    pub s3: S3Settings,
    /// Settings for Azure Blob Storage.
    pub azure: AzureSettings,
    /// Settings for Google Cloud Storage.
    pub gcs: GcsSettings,
    /// Settings for HDFS.
    pub hdfs: HdfsSettings,
    /// Settings for the Hugging Face Hub.
    pub hub: HubSettings,
    /// Settings for retries.
    pub retry: RetryPolicy,
    /// Whether late GETs over a network are hedged. If not set, they are not hedged.
    pub hedges: Option<bool>,
    /// Method of reading local files. If not set, threads read through the page cache.
    pub local_reads: Option<LocalReads>,
    /// Maximum chunk size, in bytes, of local file reads. If not set, 2 MiB.
    pub local_piece_bytes: Option<u64>,
    /// Settings for the stores of other tenants, as pairs of URL prefix and settings.
    pub(crate) tenants: Vec<(String, StoreSettings)>,
}

/// Connection settings of S3 and compatible stores. Its `Debug` output contains no credential.
#[derive(Clone, Default)]
pub struct S3Settings {
    /// Endpoint to use instead of AWS's. If set, the bucket name is part of the URL path.
    pub endpoint: Option<String>,
    /// Region for which requests are signed.
    pub region: Option<String>,
    /// Allows plain HTTP to other machines.
    pub allows_http: bool,
    /// Allows requests for credentials to the instance metadata address.
    pub asks_instance: bool,
    /// Sends requests without a signature, for public buckets.
    pub is_anonymous: bool,
    /// If the store returns no CRC, verifies an ETag that is an MD5. Disabled by default, because MD5 reaches only 0.77
    /// GB/s per core.
    pub verifies_md5: bool,
    /// Verifies the composite checksums of multipart uploads. An object with several parts needs one or two additional
    /// HEAD requests for the size of its parts.
    pub verifies_parts: bool,
    /// Environment variables that the credential chain may read: AWS_*.
    pub(crate) variables: HashMap<String, String>,
    /// Home folder. It contains the folder `.aws`.
    pub(crate) home: Option<PathBuf>,
}

impl fmt::Debug for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Settings")
            .field("endpoint", &self.endpoint.as_deref().map(|url| url.rsplit('@').next()))
            .field("region", &self.region)
            .field("allows_http", &self.allows_http)
            .field("asks_instance", &self.asks_instance)
            .field("is_anonymous", &self.is_anonymous)
            .field("verifies_md5", &self.verifies_md5)
            .field("verifies_parts", &self.verifies_parts)
            .finish_non_exhaustive()
    }
}

impl StoreSettings {
    /// Reads the standard AWS variables and the variables of Penstock: `PENSTOCK_ALLOW_HTTP`, `PENSTOCK_S3_IMDS`,
    /// `PENSTOCK_S3_ANONYMOUS`, `PENSTOCK_S3_MD5`, `PENSTOCK_S3_PARTS`, `PENSTOCK_AZURE_IMDS`, `PENSTOCK_AZURE_CLI`,
    /// `PENSTOCK_AZURE_ANONYMOUS`, `PENSTOCK_GS_METADATA`, `PENSTOCK_GS_ANONYMOUS`, `PENSTOCK_HEDGE` (1 or 0),
    /// `PENSTOCK_GIVE_UP_AFTER_S` (seconds of throttling) and `PENSTOCK_LOCAL_READS` (auto, pread, uring).
    ///
    /// `PENSTOCK_STORE_<NAME>_*` variables define the settings for the stores of other tenants (see `scoped_settings`).
    pub fn from_env(variables: &HashMap<String, String>) -> Result<Self> {
        let tenants = tenants(variables)?.into_iter().map(|tenant| {
            let mut settings = Self::plain(&tenant.variables)?;
            settings.hdfs = settings.hdfs.beside(variables);
            Ok((tenant.url, settings))
        });
        Ok(Self { tenants: tenants.collect::<Result<_>>()?, ..Self::plain(variables)? })
    }

    /// Returns these settings with `seconds` as the time budget for the retries of one request.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is not a valid duration.
    pub fn with_retry_timeout(mut self, seconds: Option<f64>) -> Result<Self> {
        if let Some(seconds) = seconds {
            let limit = duration("--retry-timeout", seconds)?;
            let retry = &mut self.retry;
            retry.give_up_after = limit;
            retry.unreachable_after = retry.unreachable_after.min(limit);
            retry.never_reached_after = retry.never_reached_after.min(limit);
        }
        Ok(self)
    }

    /// Returns the settings for a URL: the settings of its tenant or, if it has no tenant, these settings.
    pub fn of(&self, url: &Url) -> Self {
        let tenants = self.tenants.iter().filter(|(prefix, _)| is_below(url, prefix));
        let mut settings = match tenants.max_by_key(|(prefix, _)| prefix.len()) {
            None => return Self { tenants: Vec::new(), ..self.clone() },
            Some((_, settings)) => settings.clone(),
        };
        settings.retry = self.retry.clone();
        (settings.hedges, settings.local_reads) = (self.hedges, self.local_reads);
        settings.local_piece_bytes = self.local_piece_bytes;
        settings.s3.verifies_md5 |= self.s3.verifies_md5;
        settings.s3.verifies_parts |= self.s3.verifies_parts;
        settings
    }

    fn plain(variables: &HashMap<String, String>) -> Result<Self> {
        let text = |name: &str| variables.get(name).map(String::as_str).filter(|value| !value.is_empty());
        let flag = |name: &str| match text(name) {
            None | Some("0" | "false" | "no") => Ok(false),
            Some("1" | "true" | "yes") => Ok(true),
            Some(other) => Err(Error::config(name, format!("must be 1 or 0 (got `{other}`)"))),
        };
        let metadata_off = text("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let ignores_endpoints =
            text("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let config = text("AWS_CONFIG_FILE")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(text("HOME")?).join(".aws/config")));
        // As in all AWS tools, a missing file is ignored.
        let config = config.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let profile = aws_profile(&config, text("AWS_PROFILE").unwrap_or("default"));
        let bundle = profile.get("ca_bundle").filter(|_| text("AWS_CA_BUNDLE").is_none());
        let bundle = bundle.map(|path| ("AWS_CA_BUNDLE".to_owned(), path.clone()));
        let mut retry = RetryPolicy::default();
        if let Some(seconds) = text("PENSTOCK_GIVE_UP_AFTER_S") {
            retry.give_up_after =
                seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(
                    || {
                        Error::config(
                            "PENSTOCK_GIVE_UP_AFTER_S",
                            format!("must be a valid duration in seconds (got `{seconds}`)"),
                        )
                    },
                )?;
        }
        Ok(Self {
            s3: S3Settings {
                endpoint: text("AWS_ENDPOINT_URL_S3")
                    .or(text("AWS_ENDPOINT_URL"))
                    .or_else(|| profile.get("endpoint_url").map(String::as_str).filter(|_| !ignores_endpoints))
                    .map(str::to_owned),
                region: text("AWS_REGION")
                    .or(text("AWS_DEFAULT_REGION"))
                    .or_else(|| profile.get("region").map(String::as_str))
                    .map(str::to_owned),
                allows_http: flag("PENSTOCK_ALLOW_HTTP")?,
                asks_instance: flag("PENSTOCK_S3_IMDS")? && !metadata_off,
                is_anonymous: flag("PENSTOCK_S3_ANONYMOUS")?,
                verifies_md5: flag("PENSTOCK_S3_MD5")?,
                verifies_parts: flag("PENSTOCK_S3_PARTS")?,
                variables: variables
                    .iter()
                    .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .chain(bundle)
                    .collect(),
                home: text("HOME").map(PathBuf::from),
            },
            azure: AzureSettings {
                allows_http: flag("PENSTOCK_ALLOW_HTTP")?,
                is_anonymous: flag("PENSTOCK_AZURE_ANONYMOUS")?,
                asks_instance: flag("PENSTOCK_AZURE_IMDS")?,
                asks_cli: text("PENSTOCK_AZURE_CLI").is_none() || flag("PENSTOCK_AZURE_CLI")?,
                ..AzureSettings::from_env(variables)?
            },
            gcs: GcsSettings {
                allows_http: flag("PENSTOCK_ALLOW_HTTP")?,
                is_anonymous: flag("PENSTOCK_GS_ANONYMOUS")?,
                asks_instance: flag("PENSTOCK_GS_METADATA")?,
                ..GcsSettings::from_env(variables)
            },
            hdfs: HdfsSettings::from_env(variables),
            hub: HubSettings { allows_http: flag("PENSTOCK_ALLOW_HTTP")?, ..HubSettings::from_env(variables) },
            retry,
            hedges: text("PENSTOCK_HEDGE").map(|_| flag("PENSTOCK_HEDGE")).transpose()?,
            local_reads: text("PENSTOCK_LOCAL_READS").map(str::parse).transpose()?,
            local_piece_bytes: None,
            tenants: Vec::new(),
        })
    }
}

/// Returns the settings of one profile in an AWS configuration file. Omits nested settings, such as `s3 =` and the
/// indented lines after it.
fn aws_profile(config: &str, name: &str) -> HashMap<String, String> {
    let mut is_ours = false;
    let mut found = HashMap::new();
    for line in config.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        if let Some(section) = line.trim_end().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let mut words = section.split_whitespace();
            is_ours = match (words.next(), words.next(), words.next()) {
                (Some("default"), None, None) => name == "default",
                (Some("profile"), Some(profile), None) => profile.trim_matches(['"', '\'']) == name,
                _ => false,
            };
        } else if let (true, Some((key, value))) = (is_ours, line.split_once('='))
            && !value.trim().is_empty()
        {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn test_settings_debug_shows_no_secret() {
        let settings = StoreSettings::from_env(&env(&[
            ("AWS_ACCESS_KEY_ID", "AKIDSECRET"),
            ("AWS_SECRET_ACCESS_KEY", "verysecret"),
            ("AWS_SESSION_TOKEN", "tokensecret"),
            ("AWS_ENDPOINT_URL", "http://user:pass-secret@host"),
        ]))
        .unwrap();
        assert!(!format!("{settings:?}").to_lowercase().contains("secret"), "{settings:?}");
    }

    #[test]
    fn test_settings_s3_endpoint_wins_over_the_general_one() {
        let pairs = [("AWS_ENDPOINT_URL", "http://a"), ("AWS_ENDPOINT_URL_S3", "http://b"), ("AWS_REGION", "")];
        let settings = StoreSettings::from_env(&env(&pairs)).unwrap();
        assert_eq!(settings.s3.endpoint.as_deref(), Some("http://b"));
        assert_eq!(settings.s3.region, None);
    }

    #[test]
    fn test_settings_of_the_chosen_aws_profile_hold_where_the_environment_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let text = "[default]\nregion = one-1\n[profile lab]\nregion=two-2\nendpoint_url = https://lab.example\ns3 =\n  \
                    endpoint_url = https://nested\n[services x]\nregion = no\n";
        std::fs::write(&path, text).unwrap();
        let of = |more: &[(&str, &str)]| {
            let pairs = [&[("AWS_CONFIG_FILE", path.to_str().unwrap())], more].concat();
            let s3 = StoreSettings::from_env(&env(&pairs)).unwrap().s3;
            (s3.region.unwrap_or_default(), s3.endpoint.unwrap_or_default())
        };
        assert_eq!(of(&[]), ("one-1".to_owned(), String::new()));
        assert_eq!(of(&[("AWS_PROFILE", "lab")]), ("two-2".to_owned(), "https://lab.example".to_owned()));
        assert_eq!(of(&[("AWS_PROFILE", "x")]), (String::new(), String::new()));
        let over = [("AWS_PROFILE", "lab"), ("AWS_REGION", "three-3"), ("AWS_ENDPOINT_URL", "https://env")];
        assert_eq!(of(&over), ("three-3".to_owned(), "https://env".to_owned()));
        let ignored = [("AWS_PROFILE", "lab"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(of(&ignored), ("two-2".to_owned(), String::new()));
    }

    #[test]
    fn test_settings_bad_values_are_named() {
        for pair in [("PENSTOCK_ALLOW_HTTP", "maybe"), ("PENSTOCK_GIVE_UP_AFTER_S", "-1")] {
            let error = StoreSettings::from_env(&env(&[pair])).unwrap_err();
            assert_eq!(error.code(), "config");
            assert!(error.to_string().contains(pair.0), "{error}");
        }
    }

    #[test]
    fn settings_instance_metadata_is_asked_only_if_enabled() {
        assert!(!StoreSettings::from_env(&env(&[])).unwrap().s3.asks_instance);
        assert!(StoreSettings::from_env(&env(&[("PENSTOCK_S3_IMDS", "1")])).unwrap().s3.asks_instance);
        let both = env(&[("PENSTOCK_S3_IMDS", "1"), ("AWS_EC2_METADATA_DISABLED", "true")]);
        assert!(!StoreSettings::from_env(&both).unwrap().s3.asks_instance);
    }
}
