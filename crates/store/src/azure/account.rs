// SPDX-License-Identifier: Apache-2.0
//! Azure storage account: name, endpoint and credential, read from Azure's environment variables or a connection
//! string.

use std::collections::HashMap;
use std::fmt;

use http::Uri;
use penstock_types::{Error, Result};
use reqsign_azure_storage::Credential;

use crate::transport::{is_loopback, uri};

/// Account name of the Azurite emulator. The emulator's documentation publishes the key of this account, which gives
/// access only to test storage.
const EMULATED: &str = "devstoreaccount1";

/// Connection settings of Azure Blob Storage. Its `Debug` output contains no credential.
#[derive(Clone, Default)]
pub struct AzureSettings {
    /// Name of the storage account.
    pub account: Option<String>,
    /// Endpoint of the account. If not set, it is `https://ACCOUNT.blob.core.windows.net`.
    pub endpoint: Option<String>,
    /// Allows plain HTTP to other machines.
    pub allows_http: bool,
    /// Sends requests without a signature, for public containers.
    pub is_anonymous: bool,
    /// Allows requests for a token to the instance metadata address.
    pub asks_instance: bool,
    /// Allows tokens from the login of the `az` program.
    pub asks_cli: bool,
    pub(crate) key: Option<String>,
    pub(crate) sas: Option<String>,
    /// Environment variables that the token sources may read: AZURE_*, IDENTITY_* and HOME.
    pub(crate) variables: HashMap<String, String>,
}

impl fmt::Debug for AzureSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureSettings")
            .field("account", &self.account)
            .field("endpoint", &self.endpoint.as_deref().map(|url| url.split('?').next()?.rsplit('@').next()))
            .field("allows_http", &self.allows_http)
            .field("is_anonymous", &self.is_anonymous)
            .field("asks_instance", &self.asks_instance)
            .field("asks_cli", &self.asks_cli)
            .finish_non_exhaustive()
    }
}

impl AzureSettings {
    /// Reads `AZURE_STORAGE_CONNECTION_STRING`. The variables `AZURE_STORAGE_ACCOUNT`, `AZURE_STORAGE_KEY`,
    /// `AZURE_STORAGE_SAS_TOKEN` and `AZURE_STORAGE_ENDPOINT` override its values.
    pub(crate) fn from_env(variables: &HashMap<String, String>) -> Result<Self> {
        let text = |names: &[&str]| {
            let found = names.iter().filter_map(|name| variables.get(*name)).find(|value| !value.is_empty());
            found.cloned()
        };
        let parts = match text(&["AZURE_STORAGE_CONNECTION_STRING"]) {
            Some(string) => connection(&string)?,
            None => HashMap::new(),
        };
        let part = |name: &str| parts.get(name).cloned();
        let account = text(&["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"]).or(part("accountname"));
        let endpoint = text(&["AZURE_STORAGE_ENDPOINT"]).or(part("blobendpoint")).or_else(|| {
            let scheme = part("defaultendpointsprotocol").unwrap_or_else(|| "https".to_owned());
            Some(format!("{scheme}://{}.blob.{}", account.as_ref()?, part("endpointsuffix")?))
        });
        Ok(Self {
            account,
            endpoint,
            key: text(&["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"]).or(part("accountkey")),
            sas: text(&["AZURE_STORAGE_SAS_TOKEN"]).or(part("sharedaccesssignature")),
            variables: variables
                .iter()
                .filter(|(name, value)| {
                    let is_ours =
                        name.starts_with("AZURE_") || name.starts_with("IDENTITY_") || name.as_str() == "HOME";
                    is_ours && !value.is_empty()
                })
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            ..Self::default()
        })
    }
}

/// Parses a connection string (`Name=value;...`) into a map with lower-case names. Errors do not quote the string,
/// because it may contain a key.
fn connection(text: &str) -> Result<HashMap<String, String>> {
    let bad = |problem: &str| Error::config("AZURE_STORAGE_CONNECTION_STRING", problem);
    let mut parts = HashMap::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| bad("every part must be Name=value"))?;
        parts.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    if parts.get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(bad("UseDevelopmentStorage is not supported; set AccountName, AccountKey and BlobEndpoint"));
    }
    Ok(parts)
}

/// Endpoint and credential of one container.
pub(super) struct Account {
    shown: String,
    base: String,
    credential: Option<Credential>,
}

impl Account {
    pub(super) fn new(container: &str, settings: &AzureSettings) -> Result<Self> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_known = matches!(container, "$root" | "$web" | "$logs");
        if !is_known && (container.is_empty() || container.len() > 63 || !container.chars().all(is_name)) {
            return Err(Error::config(
                "container",
                format!("`{}` is not a valid container name", container.escape_debug()),
            ));
        }
        let account = settings.account.as_deref();
        if account.is_some_and(|name| name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')) {
            return Err(Error::config("AZURE_STORAGE_ACCOUNT", "not a valid account name"));
        }
        let endpoint = match (&settings.endpoint, account) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(account)) => format!("https://{account}.blob.core.windows.net"),
            (None, None) => {
                let problem = "not set; az:// URLs require this variable or AZURE_STORAGE_CONNECTION_STRING";
                return Err(Error::config("AZURE_STORAGE_ACCOUNT", problem));
            }
        };
        // The URL may contain a password. Errors may contain the URL only after the check below.
        let bad = |problem: &str| Error::config("AZURE_STORAGE_ENDPOINT", problem);
        let uri: Uri = endpoint.parse().map_err(|_| bad("not a valid URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad("the URL contains a password or a query; put a SAS in AZURE_STORAGE_SAS_TOKEN"));
        }
        let scheme = match uri.scheme_str() {
            Some("https") => "https",
            Some("http") if settings.allows_http || is_loopback(authority.host()) => "http",
            Some("http") => {
                return Err(bad(&format!(
                    "http://{authority} is plain http to another machine: use https, or set PENSTOCK_ALLOW_HTTP=1 on a \
                     network that you trust"
                )));
            }
            _ => return Err(bad("the URL must begin with https:// or http://")),
        };
        let shown = format!("{scheme}://{authority}");
        let mut path = uri.path().trim_end_matches('/').to_owned();
        // If the endpoint is a loopback address (Azurite), the URL path contains the account.
        if let (true, "", Some(account)) = (is_loopback(authority.host()), path.as_str(), account) {
            path = format!("/{account}");
        }
        let named = account.or_else(|| path.strip_prefix('/')).or_else(|| authority.host().split('.').next());
        let credential = match (&settings.key, &settings.sas) {
            _ if settings.is_anonymous => None,
            (_, Some(sas)) => Some(Credential::with_sas_token(sas.trim_start_matches('?'))),
            (Some(key), None) => Some(Credential::with_shared_key(named.unwrap_or(EMULATED), key)),
            (None, None) => None,
        };
        Ok(Self { base: format!("{shown}{path}/{container}"), shown, credential })
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn credential(&self) -> Option<Credential> {
        self.credential.clone()
    }

    /// Returns the URI of a blob, or of the container if there is no key.
    pub(super) fn uri(&self, key: Option<&[u8]>, query: &str) -> Result<Uri> {
        uri(&self.base, key, query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<AzureSettings> {
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        AzureSettings::from_env(&env)
    }

    fn wire(pairs: &[(&str, &str)]) -> Result<String> {
        Ok(Account::new("c", &settings(pairs)?)?.uri(Some(b"a b/k"), "").unwrap().to_string())
    }

    #[test]
    fn test_azure_account_comes_from_variables_or_a_connection_string() {
        let string =
            "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=c2VjcmV0==;EndpointSuffix=core.example;";
        assert_eq!(wire(&[("AZURE_STORAGE_ACCOUNT", "acc")]).unwrap(), "https://acc.blob.core.windows.net/c/a%20b/k");
        assert_eq!(
            wire(&[("AZURE_STORAGE_CONNECTION_STRING", string)]).unwrap(),
            "https://acc.blob.core.example/c/a%20b/k"
        );
        assert_eq!(
            settings(&[("AZURE_STORAGE_CONNECTION_STRING", string)]).unwrap().key.as_deref(),
            Some("c2VjcmV0==")
        );
        let local = [("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1/acc"), ("AZURE_STORAGE_ACCOUNT", "acc")];
        assert_eq!(wire(&local).unwrap(), "http://127.0.0.1:1/acc/c/a%20b/k");
        assert_eq!(wire(&[]).unwrap_err().code(), "config");
    }

    #[test]
    fn test_azure_settings_that_cannot_be_are_refused_without_their_secrets() {
        for pairs in [
            [("AZURE_STORAGE_CONNECTION_STRING", "AccountKey:secret"), ("", "")],
            [("AZURE_STORAGE_ENDPOINT", "https://acc.example/?sig=secret"), ("AZURE_STORAGE_ACCOUNT", "acc")],
            [("AZURE_STORAGE_ENDPOINT", "https://u:secret@acc.example/"), ("AZURE_STORAGE_ACCOUNT", "acc")],
            [("AZURE_STORAGE_ENDPOINT", "http://10.0.0.1/"), ("AZURE_STORAGE_ACCOUNT", "acc")],
            [("AZURE_STORAGE_ACCOUNT", "acc?secret"), ("", "")],
        ] {
            let error = wire(&pairs).unwrap_err();
            assert!(error.code() == "config" && !error.to_string().contains("secret"), "{error}");
        }
        let pairs = [("AZURE_STORAGE_KEY", "keysecret"), ("AZURE_STORAGE_SAS_TOKEN", "sig=sassecret")];
        assert!(!format!("{:?}", settings(&pairs).unwrap()).contains("secret"));
    }
}
