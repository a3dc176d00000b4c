// SPDX-License-Identifier: Apache-2.0
//! Authorizes requests with a token from the credential cache.

use std::sync::Arc;

use http::request;
use penstock_types::Result;
use reqsign_command_execute_tokio::TokioCommandExecute;
use reqsign_core::{Context, StaticEnv};
use reqsign_file_read_tokio::TokioFileRead;
use reqsign_google::{Credential, RequestSigner};

use super::GcsSettings;
use super::chain::{Chain, SCOPE};
use crate::credentials::guarded_http::GuardedClient;
use crate::credentials::{self, CredentialCache, Shared, Stamp, name_of};
use crate::transport::client::Http;
use crate::transport::unsigned;

/// Hint in the error for a request without credentials.
const ADVICE: &str = "set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default \
    login`, or read a public bucket with PENSTOCK_GS_ANONYMOUS=1";

static KEEPERS: Shared<Credential> = Shared::new();

/// Adds the token from the cache to requests (see `credentials`).
pub(super) struct Authorizer {
    keeper: Option<Arc<CredentialCache<Credential>>>,
    signer: RequestSigner,
}

impl Authorizer {
    pub(super) fn new(settings: &GcsSettings, is_anonymous: bool) -> Self {
        let signer = RequestSigner::new("storage").with_scope(SCOPE);
        if is_anonymous {
            return Self { keeper: None, signer };
        }
        let variables = settings.variables.clone();
        let keeper = KEEPERS.get(format!("{}\0{}", settings.asks_instance, name_of(&variables)), || {
            let metadata = variables.get("GCE_METADATA_HOST").filter(|_| settings.asks_instance);
            let metadata = metadata.map(|host| format!("http://{host}/"));
            let client = GuardedClient::new(Http::new(), settings.asks_instance).naming(metadata.as_deref());
            let context = Context::new()
                .with_file_read(TokioFileRead)
                .with_command_execute(TokioCommandExecute)
                .with_http_send(client.clone())
                .with_env(StaticEnv { home_dir: None, envs: variables });
            CredentialCache::new(context, Chain { client, asks_instance: settings.asks_instance })
        });
        Self { keeper: Some(keeper), signer }
    }

    pub(super) async fn authorize(&self, head: &mut request::Parts, place: &str) -> Result<Stamp> {
        let signed = credentials::sign(self.keeper.as_deref(), &self.signer, head).await;
        signed.map_err(|error| unsigned(&error, place, ADVICE))
    }

    /// Handles a response which reports an expired token. Returns true if a retry with a new token is possible.
    pub(super) fn renews(&self, stamp: Stamp) -> bool {
        credentials::renews(self.keeper.as_deref(), stamp)
    }
}
