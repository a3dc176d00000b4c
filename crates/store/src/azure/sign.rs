// SPDX-License-Identifier: Apache-2.0
//! Signatures, and the tokens behind them: a key or a SAS where one is given; else the token sources that are set up, by
//! name, in the environment (client secret or certificate, workload identity), then the CLI's login. The
//! instance's metadata address is asked only where the settings say so.

use http::request;
use penstock_types::Result;
use reqsign_azure_storage::{
    AzureCliCredentialProvider, ClientCertificateCredentialProvider, ClientSecretCredentialProvider, Credential,
    ImdsCredentialProvider, RequestSigner, WorkloadIdentityCredentialProvider,
};
use reqsign_command_execute_tokio::TokioCommandExecute;
use reqsign_core::{Context, ProvideCredential, ProvideCredentialChain, Signer, StaticEnv};
use reqsign_file_read_tokio::TokioFileRead;

use super::AzureSettings;
use crate::wire::client::Http;
use crate::wire::unsigned;

/// A credential that was given outright.
#[derive(Debug)]
struct Given(Credential);

impl ProvideCredential for Given {
    type Credential = Credential;

    async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
        Ok(Some(self.0.clone()))
    }
}

/// What to do without credentials.
const ADVICE: &str = "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, log in with `az login`, or \
    read a public container with PENSTOCK_AZURE_ANONYMOUS=1";

/// Signs requests; tokens are loaded at the first, kept, and refreshed before they expire.
pub(super) struct Sign {
    signer: Option<Signer<Credential>>,
}

impl Sign {
    pub(super) fn new(settings: &AzureSettings, given: Option<Credential>, http: Http) -> Self {
        if settings.is_anonymous {
            return Self { signer: None };
        }
        let has = |name: &str| settings.variables.contains_key(name);
        let mut chain = ProvideCredentialChain::new();
        match given {
            Some(credential) => chain = chain.push(Given(credential)),
            None => {
                if has("AZURE_CLIENT_SECRET") {
                    chain = chain.push(ClientSecretCredentialProvider::new());
                }
                if has("AZURE_CLIENT_CERTIFICATE_PATH") {
                    chain = chain.push(ClientCertificateCredentialProvider::new());
                }
                if has("AZURE_FEDERATED_TOKEN_FILE") {
                    chain = chain.push(WorkloadIdentityCredentialProvider::new());
                }
                chain = chain.push(AzureCliCredentialProvider::new());
                if settings.asks_instance {
                    chain = chain.push(ImdsCredentialProvider::new());
                }
            }
        }
        let context = Context::new()
            .with_file_read(TokioFileRead)
            .with_command_execute(TokioCommandExecute)
            .with_http_send(http)
            .with_env(StaticEnv { home_dir: None, envs: settings.variables.clone() });
        Self { signer: Some(Signer::new(context, chain, RequestSigner::new())) }
    }

    pub(super) async fn sign(&self, head: &mut request::Parts, place: &str) -> Result<()> {
        let Some(signer) = &self.signer else { return Ok(()) };
        signer.sign(head, None).await.map_err(|error| unsigned(&error, place, ADVICE))
    }
}
