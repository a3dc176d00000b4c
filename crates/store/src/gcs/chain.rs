// SPDX-License-Identifier: Apache-2.0
//! Google's application default credentials. The first source is the file that `GOOGLE_APPLICATION_CREDENTIALS` names,
//! the second the file that `gcloud auth application-default login` writes. The third source is the metadata address,
//! if the settings allow it. A file may contain the credentials of a user, a service account (possibly impersonated) or
//! an external account (workload identity federation). The search ends at the first file that exists, even if it cannot
//! be used.

use std::path::PathBuf;

use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, FileRead, ProvideCredential, Result};
use reqsign_file_read_tokio::TokioFileRead;
use reqsign_google::{
    Credential, FileCredentialProvider, ServiceAccountTokenCredentialProvider, VmMetadataCredentialProvider,
};
use serde_json::{Value, json};

use crate::credentials::Expiring;
use crate::credentials::guarded_http::GuardedClient;

pub(super) const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";

/// Token endpoint for users and service accounts. A credential file can name another endpoint.
const TOKENS: &str = "https://oauth2.googleapis.com/token";

impl Expiring for Credential {
    fn ends_s(&self) -> Option<i64> {
        self.token.as_ref()?.expires_at.map(Timestamp::as_second)
    }

    fn is_fixed(&self) -> bool {
        false
    }
}

/// Chain of sources for Google's application default credentials.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) client: GuardedClient,
    pub(super) asks_instance: bool,
}

/// Content of the credential file, changed so that the provider accepts it.
#[derive(Debug)]
struct Seen {
    path: String,
    bytes: Vec<u8>,
}

impl FileRead for Seen {
    async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
        match path == self.path {
            true => Ok(self.bytes.clone()),
            false => TokioFileRead.file_read(path).await,
        }
    }
}

/// Returns the path of the credential file. The flag is true if the user's environment variable names that file.
fn place(context: &Context) -> Option<(PathBuf, bool)> {
    let named = context.env_var("GOOGLE_APPLICATION_CREDENTIALS").filter(|path| !path.is_empty());
    if let Some(path) = named {
        return Some((path.into(), true));
    }
    let of =
        |name: &str, below: &str| Some(PathBuf::from(context.env_var(name).filter(|v| !v.is_empty())?).join(below));
    let folders = [of("CLOUDSDK_CONFIG", ""), of("XDG_CONFIG_HOME", "gcloud"), of("HOME", ".config/gcloud")]
        .into_iter()
        .flatten();
    let mut files = folders.map(|folder| folder.join("application_default_credentials.json"));
    files.find(|file| file.is_file()).map(|file| (file, false))
}

impl ProvideCredential for Chain {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        let Some((path, is_named)) = place(context) else {
            return match self.asks_instance {
                true => VmMetadataCredentialProvider::new().with_scope(SCOPE).provide_credential(context).await,
                false => Ok(None),
            };
        };
        let path = path.to_string_lossy().into_owned();
        let whose = if is_named {
            "GOOGLE_APPLICATION_CREDENTIALS names a file that"
        } else {
            "gcloud's default credentials file"
        };
        let bytes = context.file_read(&path).await;
        let bytes = bytes.map_err(|_| Error::config_invalid(format!("{whose} cannot be read")))?;
        let odd = || Error::config_invalid(format!("{whose} contains no credentials"));
        let mut document: Value = serde_json::from_slice(&bytes).map_err(|_| odd())?;
        // In a `credential_source`, `format` is optional and defaults to text. The parser requires it, so add it.
        if let Some(source) = document.get_mut("credential_source").and_then(Value::as_object_mut)
            && (source.contains_key("file") || source.contains_key("url"))
            && !source.contains_key("environment_id")
        {
            source.entry("format").or_insert_with(|| json!({"type": "text"}));
        }
        let kind = document.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let moved = document.get("token_uri").and_then(Value::as_str).filter(|uri| *uri != TOKENS);
        let moved = moved.map(|uri| uri.parse().map_err(|_| odd())).transpose()?;
        let client = self.client.clone().moving(TOKENS, moved);
        let bytes = serde_json::to_vec(&document).map_err(|_| odd())?;
        let context = context.clone().with_http_send(client).with_file_read(Seen { path: path.clone(), bytes });
        let file = FileCredentialProvider::new(&path).with_scope(SCOPE);
        match kind.as_str() {
            // Exchange the key for a token here, once. Otherwise, the signer would request a token for each request.
            "service_account" => {
                let account = ServiceAccountTokenCredentialProvider::from_provider(file).with_scope(SCOPE);
                account.provide_credential(&context).await
            }
            "authorized_user" | "external_account" | "impersonated_service_account" => {
                file.provide_credential(&context).await
            }
            _ => Err(odd()),
        }
    }
}
