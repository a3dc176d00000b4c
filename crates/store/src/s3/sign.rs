// SPDX-License-Identifier: Apache-2.0
//! Signatures, and the credentials behind them: environment, profile files, SSO, web identity, credential_process and
//! containers, in the order of the AWS tools. The instance metadata address is asked only where the settings say so.

use http::request;
use penstock_types::{Error, Result};
use reqsign_aws_v4::{
    AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider, EnvCredentialProvider,
    IMDSv2CredentialProvider, ProcessCredentialProvider, ProfileCredentialProvider, RequestSigner,
    SSOCredentialProvider,
};
use reqsign_command_execute_tokio::TokioCommandExecute;
use reqsign_core::{Context, ErrorKind, ProvideCredential, ProvideCredentialDyn, Signer, StaticEnv};
use reqsign_file_read_tokio::TokioFileRead;

use crate::S3Settings;
use crate::wire::client::Http;

/// Signs requests; credentials are loaded at the first, kept, and refreshed before they expire.
pub(super) struct Sign {
    signer: Option<Signer<Credential>>,
    sources: String,
}

impl Sign {
    pub(super) fn new(settings: &S3Settings, region: &str, http: Http) -> Self {
        if settings.is_anonymous {
            return Self { signer: None, sources: String::new() };
        }
        let chain = Chain::new(settings);
        let sources = chain.sources();
        let context = Context::new()
            .with_file_read(TokioFileRead)
            .with_command_execute(TokioCommandExecute)
            .with_http_send(http)
            .with_env(StaticEnv { home_dir: settings.home.clone(), envs: settings.variables.clone() });
        Self { signer: Some(Signer::new(context, chain, RequestSigner::new("s3", region))), sources }
    }

    pub(super) async fn sign(&self, head: &mut request::Parts, place: &str) -> Result<()> {
        let Some(signer) = &self.signer else { return Ok(()) };
        signer.sign(head, None).await.map_err(|error| {
            let place = place.to_owned();
            // Only the text: what lies beneath may quote a file or an answer that holds a secret.
            let text = error.to_string();
            match error.kind() {
                _ if error.is_retryable() => Error::Unreachable { place, reason: format!("no credentials: {text}") },
                ErrorKind::CredentialInvalid if text.starts_with("failed to load") => {
                    Error::Denied { place, reason: format!("no credentials in {}", self.sources) }
                }
                ErrorKind::RequestInvalid => Error::bug(format!("a request cannot be signed: {text}")),
                ErrorKind::ConfigInvalid => Error::config("AWS credentials", text),
                _ => Error::Denied { place, reason: format!("no credentials: {text}") },
            }
        })
    }
}

/// Asks each source in turn. A source that is set up but broken does not end the search, and is what is told when the
/// others have nothing either.
#[derive(Debug)]
struct Chain {
    sources: Vec<(&'static str, Box<dyn ProvideCredentialDyn<Credential = Credential>>)>,
}

impl Chain {
    fn new(settings: &S3Settings) -> Self {
        let mut sources: Vec<(&'static str, Box<dyn ProvideCredentialDyn<Credential = Credential>>)> = vec![
            ("the environment", Box::new(EnvCredentialProvider::new())),
            ("the profile files", Box::new(ProfileCredentialProvider::new())),
            ("SSO", Box::new(SSOCredentialProvider::default())),
            ("web identity", Box::new(AssumeRoleWithWebIdentityCredentialProvider::default())),
            ("credential_process", Box::new(ProcessCredentialProvider::new())),
        ];
        if settings.variables.keys().any(|name| name.starts_with("AWS_CONTAINER_CREDENTIALS_")) {
            sources.push(("the container's address", Box::new(ECSCredentialProvider::new())));
        }
        if settings.asks_instance {
            sources.push(("the instance's metadata", Box::new(IMDSv2CredentialProvider::default())));
        }
        Self { sources }
    }

    fn sources(&self) -> String {
        self.sources.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }
}

impl ProvideCredential for Chain {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> reqsign_core::Result<Option<Credential>> {
        let mut first = None;
        for (name, source) in &self.sources {
            match source.provide_credential_dyn(context).await {
                Ok(Some(credential)) => return Ok(Some(credential)),
                Ok(None) => {}
                Err(error) => {
                    // Past the first colon a message may quote what a command or a server said.
                    let text = error.to_string();
                    let told = text.split(':').next().unwrap_or_default();
                    let told = reqsign_core::Error::new(error.kind(), format!("{name}: {told}"));
                    first.get_or_insert(told.set_retryable(error.is_retryable()));
                }
            }
        }
        first.map_or(Ok(None), Err)
    }
}
