// SPDX-License-Identifier: Apache-2.0
//! Signs requests with credentials from the cache. Error messages contain only text from Penstock, never the response
//! of a credential provider.

use std::sync::Arc;

use http::request;
use penstock_types::{Error, Result};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_command_execute_tokio::TokioCommandExecute;
use reqsign_core::{Context, ErrorKind, StaticEnv};
use reqsign_file_read_tokio::TokioFileRead;

use super::chain::Chain;
use crate::S3Settings;
use crate::credentials::guarded_http::GuardedClient;
use crate::credentials::{self, CredentialCache, NOTHING, Shared, Stamp, name_of};
use crate::transport::client::Http;

static KEEPERS: Shared<Credential> = Shared::new();

/// Signs requests with the credential from the cache (see `credentials`).
pub(super) struct Sign {
    keeper: Option<Arc<CredentialCache<Credential>>>,
    signer: RequestSigner,
    sources: String,
    /// True if the keys come from the environment, which does not change while the process runs.
    is_fixed: bool,
}

impl Sign {
    pub(super) fn new(settings: &S3Settings, region: &str, http: &Http) -> Self {
        let signer = RequestSigner::new("s3", region);
        if settings.is_anonymous {
            return Self { keeper: None, signer, sources: String::new(), is_fixed: true };
        }
        let variable = |name: &str| settings.variables.get(name).map(String::as_str);
        let (full, relative) = (
            variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|_| "http://169.254.170.2/"),
        );
        // Allow only known hosts. Otherwise, this variable could send a token to an arbitrary host.
        let full = full.filter(|url| is_container_host(url));
        let chain = Chain {
            region: region.to_owned(),
            asks_instance: settings.asks_instance,
            has_container: full.or(relative).is_some(),
        };
        let sources = chain.sources();
        let home = settings.home.as_ref().map(|home| home.display().to_string()).unwrap_or_default();
        let name = format!("{home}\0{region}\0{}\0{}", settings.asks_instance, name_of(&settings.variables));
        let keeper = KEEPERS.get(name, || {
            let client = GuardedClient::new(http.clone(), settings.asks_instance).naming(full).naming(relative);
            let context = Context::new()
                .with_file_read(TokioFileRead)
                .with_command_execute(TokioCommandExecute)
                .with_http_send(client)
                .with_env(StaticEnv { home_dir: settings.home.clone(), envs: settings.variables.clone() });
            CredentialCache::new(context, chain)
        });
        let is_fixed = variable("AWS_ACCESS_KEY_ID").and(variable("AWS_SECRET_ACCESS_KEY")).is_some();
        Self { keeper: Some(keeper), signer, sources, is_fixed }
    }

    pub(super) async fn sign(&self, head: &mut request::Parts, place: &str) -> Result<Stamp> {
        let signed = credentials::sign(self.keeper.as_deref(), &self.signer, head).await;
        signed.map_err(|error| {
            let place = place.to_owned();
            // Use only the text of the error. Its source may quote a file or a response that contains a secret.
            let text = error.to_string();
            match error.kind() {
                _ if text.contains(NOTHING) => {
                    Error::Denied { place, reason: format!("no credentials in {}", self.sources) }
                }
                _ if error.is_retryable() => Error::Unreachable { place, reason: format!("no credentials: {text}") },
                ErrorKind::RequestInvalid => Error::bug(format!("a request cannot be signed: {text}")),
                ErrorKind::ConfigInvalid => Error::config("AWS credentials", text),
                _ => Error::Denied { place, reason: format!("no credentials: {text}") },
            }
        })
    }

    /// Handles a response which reports an expired credential. Returns true if a retry with a new one is possible.
    pub(super) fn renews(&self, stamp: Stamp) -> bool {
        !self.is_fixed && credentials::renews(self.keeper.as_deref(), stamp)
    }
}

/// Returns true for this machine, for the addresses at which ECS and EKS provide container credentials, and for any
/// host over TLS.
fn is_container_host(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let is_known = matches!(host, "169.254.170.2" | "169.254.170.23" | "[fd00:ec2::23]");
    uri.scheme_str() == Some("https") || is_known || crate::transport::is_loopback(host)
}
