// SPDX-License-Identifier: Apache-2.0
//! Authorizes requests with a Shared Key signature, a SAS, or a token from the credential cache.

use std::sync::Arc;

use http::request;
use penstock_types::Result;
use reqsign_azure_storage::{Credential, RequestSigner};
use reqsign_command_execute_tokio::TokioCommandExecute;
use reqsign_core::{Context, StaticEnv};
use reqsign_file_read_tokio::TokioFileRead;

use super::AzureSettings;
use super::chain::Chain;
use crate::credentials::guarded_http::GuardedClient;
use crate::credentials::{self, CredentialCache, Shared, Stamp, name_of};
use crate::transport::client::Http;
use crate::transport::unsigned;

/// Hint in the error for a request without credentials.
const ADVICE: &str = "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, log in with `az login`, or \
    read a public container with PENSTOCK_AZURE_ANONYMOUS=1";

static KEEPERS: Shared<Credential> = Shared::new();

/// Authorizes requests with the credential from the cache (see `credentials`).
pub(super) struct Authorizer {
    keeper: Option<Arc<CredentialCache<Credential>>>,
    signer: RequestSigner,
}

impl Authorizer {
    pub(super) fn new(settings: &AzureSettings, given: Option<Credential>) -> Self {
        let signer = RequestSigner::new();
        if settings.is_anonymous {
            return Self { keeper: None, signer };
        }
        let variables = settings.variables.clone();
        let key = [settings.account.as_deref(), settings.key.as_deref(), settings.sas.as_deref()];
        let (asks_instance, asks_cli) = (settings.asks_instance, settings.asks_cli);
        let name = format!("{key:?}\0{asks_instance}\0{asks_cli}\0{}", name_of(&variables));
        let keeper = KEEPERS.get(name, || {
            let identity = variables.get("IDENTITY_ENDPOINT").map(String::as_str);
            let context = Context::new()
                .with_file_read(TokioFileRead)
                .with_command_execute(TokioCommandExecute)
                .with_http_send(GuardedClient::new(Http::new(), asks_instance).naming(identity))
                .with_env(StaticEnv { home_dir: None, envs: variables.clone() });
            CredentialCache::new(context, Chain { given, asks_instance, asks_cli, variables })
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
