// SPDX-License-Identifier: Apache-2.0
//! Scoped settings: environment variables that apply only to URLs with one prefix, such as the store of another tenant.
//!
//! `PENSTOCK_STORE_<NAME>_URL=s3://theirs` sets the URL prefix of a tenant. Any variable that a store reads can then be
//! set for this prefix, for example `PENSTOCK_STORE_<NAME>_AWS_PROFILE=guest`. A tenant inherits no identity. It
//! inherits no variables that contain an identity, and no home folder with `~/.aws`, gcloud's default credentials or
//! the login of `az`. If the tenant's own credentials fail, no other credentials are tried. If a tenant sets
//! `AWS_PROFILE`, that profile is read from the user's AWS files.

use std::collections::{BTreeMap, HashMap};

use penstock_types::{Error, Result, Url};

const MARK: &str = "PENSTOCK_STORE_";

/// Variables that locate the AWS profile files. A tenant inherits them only if it sets `AWS_PROFILE`.
const PROFILE_FILES: [&str; 3] = ["HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"];

/// Returns true for variables that contain an identity in any cloud.
fn is_identity(name: &str) -> bool {
    let places = [
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_CA_BUNDLE",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_AUTHORITY_HOST",
        "AZURE_IMDS_ENDPOINT",
    ];
    let clouds = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_", "CLOUDSDK_"];
    let asks = ["_IMDS", "_METADATA", "_ANONYMOUS"];
    let ours = name.starts_with("PENSTOCK_") && asks.iter().any(|end| name.ends_with(end));
    let hadoop = matches!(name, "HADOOP_USER_NAME" | "HADOOP_PROXY_USER" | "HADOOP_TOKEN_FILE_LOCATION");
    let home = matches!(name, "HOME" | "XDG_CONFIG_HOME");
    let theirs = clouds.iter().any(|cloud| name.starts_with(cloud));
    ours || hadoop || home || (theirs && !places.contains(&name) && !name.starts_with("AWS_ENDPOINT_URL"))
}

/// A tenant: the URL prefix of its stores, and its complete environment.
pub(crate) struct ScopedSettings {
    pub(crate) url: String,
    pub(crate) variables: HashMap<String, String>,
}

/// Returns the tenants that the variables define. Returns a `Config` error if a tenant has no URL, or an invalid one.
pub(crate) fn tenants(variables: &HashMap<String, String>) -> Result<Vec<ScopedSettings>> {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in variables {
        if let Some(tenant) = name.strip_prefix(MARK).and_then(|rest| rest.strip_suffix("_URL"))
            && !tenant.contains("AWS_ENDPOINT")
        {
            let url: Url =
                value.parse().map_err(|_| Error::config(name, format!("`{value}` is not a valid store URL")))?;
            if found.insert(tenant, url.to_string().trim_end_matches('/').to_owned()).is_some() {
                return Err(Error::config(name, "set twice"));
            }
        }
    }
    let mut theirs: HashMap<&str, Vec<(&str, &str)>> = HashMap::new();
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(MARK) else { continue };
        // Prefer the longest tenant name, because both `A` and `A_AWS` may be tenants.
        let tenant =
            found.keys().filter(|tenant| rest.starts_with(&format!("{tenant}_"))).max_by_key(|tenant| tenant.len());
        let Some(tenant) = tenant else {
            return Err(Error::config(name, format!("unknown store; set {MARK}<NAME>_URL")));
        };
        theirs.entry(tenant).or_default().push((&rest[tenant.len() + 1..], value));
    }
    let inherited = |name: &&String| !name.starts_with(MARK) && !is_identity(name);
    Ok(found
        .into_iter()
        .map(|(tenant, url)| {
            let mut all: HashMap<String, String> = variables
                .iter()
                .filter(|(name, _)| inherited(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            let own = theirs.remove(tenant).unwrap_or_default();
            if url.starts_with("s3:") && own.iter().any(|(name, _)| *name == "AWS_PROFILE") {
                let files = PROFILE_FILES.iter().filter_map(|name| variables.get_key_value(*name));
                all.extend(files.map(|(name, value)| (name.clone(), value.clone())));
            }
            // Disable `az`: it finds its login in the process's home folder, which a tenant's variables cannot change.
            all.insert("PENSTOCK_AZURE_CLI".to_owned(), "0".to_owned());
            all.extend(own.into_iter().filter(|(name, _)| *name != "URL").map(|(n, v)| (n.to_owned(), v.to_owned())));
            ScopedSettings { url, variables: all }
        })
        .collect())
}

/// Returns true if a URL is equal to or below a tenant's URL.
pub(crate) fn is_below(url: &Url, tenant: &str) -> bool {
    let text = url.to_string();
    text.strip_prefix(tenant).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::StoreSettings;

    fn env(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const PAIRS: [(&str, &str); 7] = [
        ("AWS_ACCESS_KEY_ID", "AKIAOURS"),
        ("AWS_SECRET_ACCESS_KEY", "ours-secret"),
        ("AWS_REGION", "eu-1"),
        ("PENSTOCK_S3_IMDS", "1"),
        ("PENSTOCK_STORE_LAB_URL", "s3://theirs/set/"),
        ("PENSTOCK_STORE_LAB_AWS_PROFILE", "guest"),
        ("PENSTOCK_STORE_LAB_AWS_ENDPOINT_URL", "https://lab.example"),
    ];

    #[test]
    fn test_tenant_holds_below_its_url_and_inherits_no_identity() {
        let settings = StoreSettings::from_env(&env(&PAIRS)).unwrap();
        let of = |url: &str| settings.of(&url.parse().unwrap());
        for url in ["s3://theirs/set/", "s3://theirs/set/a/b"] {
            let theirs = of(url).s3;
            assert_eq!(theirs.endpoint.as_deref(), Some("https://lab.example"), "{url}");
            assert_eq!(theirs.region.as_deref(), Some("eu-1"));
            assert_eq!(theirs.variables.get("AWS_PROFILE").map(String::as_str), Some("guest"));
            assert!(!theirs.variables.contains_key("AWS_ACCESS_KEY_ID") && !theirs.asks_instance);
        }
        for url in ["s3://theirs/setting", "s3://theirs/", "s3://ours/set/"] {
            let ours = of(url).s3;
            assert!(ours.endpoint.is_none() && ours.asks_instance, "{url}");
            assert!(ours.variables.contains_key("AWS_ACCESS_KEY_ID"));
        }
        assert!(!format!("{settings:?}").contains("ours-secret"));
    }

    #[test]
    fn test_tenant_sees_the_home_folder_only_for_an_s3_profile_of_its_own() {
        let home = [("HOME", "/h/us"), ("XDG_CONFIG_HOME", "/h/us/.config"), ("AWS_CONFIG_FILE", "/h/us/c")];
        for (url, profile, sees) in [
            ("s3://theirs", true, true),
            ("s3://theirs", false, false),
            ("gs://theirs", true, false),
            ("az://theirs", true, false),
        ] {
            let mut pairs = home.to_vec();
            pairs.push(("PENSTOCK_STORE_LAB_URL", url));
            pairs.extend(profile.then_some(("PENSTOCK_STORE_LAB_AWS_PROFILE", "guest")));
            let theirs = StoreSettings::from_env(&env(&pairs)).unwrap().of(&url.parse().unwrap());
            assert_eq!(theirs.s3.home.is_some(), sees, "{url}");
            assert_eq!(theirs.s3.variables.contains_key("AWS_CONFIG_FILE"), sees, "{url}");
            assert_eq!(theirs.gcs.variables.contains_key("HOME"), sees, "{url}");
            assert!(!theirs.gcs.variables.contains_key("XDG_CONFIG_HOME") && !theirs.azure.asks_cli, "{url}");
        }
        assert!(StoreSettings::from_env(&env(&home)).unwrap().azure.asks_cli);
    }

    #[test]
    fn test_tenant_settings_of_the_call_hold_there_too() {
        let mut settings = StoreSettings::from_env(&env(&PAIRS)).unwrap();
        settings.s3.verifies_md5 = true;
        settings.retry.give_up_after = std::time::Duration::from_secs(7);
        let theirs = settings.of(&"s3://theirs/set/x".parse().unwrap());
        assert!(theirs.s3.verifies_md5);
        assert_eq!(theirs.retry.give_up_after.as_secs(), 7);
        assert!(crate::open(&"s3://theirs/set/x".parse().unwrap(), &settings, Arc::default()).is_ok());
    }

    #[test]
    fn test_tenant_of_hdfs_has_its_own_user_or_is_refused_ours() {
        let ours = [("HADOOP_USER_NAME", "us"), ("PENSTOCK_STORE_LAB_URL", "hdfs://theirs")];
        let theirs = "hdfs://theirs/set".parse().unwrap();
        let settings = StoreSettings::from_env(&env(&ours)).unwrap();
        let error = crate::open(&theirs, &settings, Arc::default()).unwrap_err();
        assert!(error.code() == "config" && error.to_string().contains("HADOOP_USER_NAME"), "{error}");
        assert!(crate::open(&"hdfs://ours/set".parse().unwrap(), &settings, Arc::default()).is_ok());
        let own = [&ours[..], &[("PENSTOCK_STORE_LAB_HADOOP_USER_NAME", "them")]].concat();
        let settings = StoreSettings::from_env(&env(&own)).unwrap();
        assert_eq!(settings.of(&theirs).hdfs.user.as_deref(), Some("them"));
        assert!(crate::open(&theirs, &settings, Arc::default()).is_ok());
        // Without any user name in the settings, both stores use the login name.
        let none = StoreSettings::from_env(&env(&ours[1..])).unwrap();
        assert!(crate::open(&theirs, &none, Arc::default()).is_ok());
    }

    #[test]
    fn test_tenants_half_there_are_named() {
        for pair in [("PENSTOCK_STORE_LAB_AWS_PROFILE", "guest"), ("PENSTOCK_STORE_LAB_URL", "no url at all://")] {
            let error = StoreSettings::from_env(&env(&[pair])).unwrap_err();
            assert_eq!(error.code(), "config");
            assert!(error.to_string().contains(pair.0), "{error}");
        }
    }
}
