// SPDX-License-Identifier: Apache-2.0
//! AWS credential chain. The sources have the same order as in AWS's tools: the environment, the profile's role, web
//! identity (IRSA), the profile's SSO, the profile's keys or credential_process, and the container endpoint. The last
//! source is the instance metadata, if the settings allow it.
//!
//! The first configured source ends the search, even if it fails, because the next source would be another identity.

mod profile_files;
mod sso;
mod sts;
#[cfg(test)]
mod tests;

use std::pin::Pin;

use reqsign_aws_v4::{Credential, ECSCredentialProvider, EnvCredentialProvider, IMDSv2CredentialProvider};
use reqsign_core::{Context, Error, ProvideCredential, Result};
use serde::Deserialize;

use self::profile_files::{Files, ProfileSource, RoleSource, words};
use crate::credentials::Expiring;

/// Maximum number of roles in a chain, in which each role assumes the next one.
const DEEPEST: usize = 8;

impl Expiring for Credential {
    fn ends_s(&self) -> Option<i64> {
        self.expires_in.map(|ends| ends.as_second())
    }

    fn is_fixed(&self) -> bool {
        self.session_token.is_none()
    }
}

/// Chain of AWS credential sources.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) region: String,
    pub(super) asks_instance: bool,
    pub(super) has_container: bool,
}

impl Chain {
    /// Lists the sources that were tried, for the error if no source has credentials.
    pub(super) fn sources(&self) -> String {
        let mut sources = vec!["the environment", "the profile files", "SSO", "web identity", "credential_process"];
        sources.extend(self.has_container.then_some("the container's address"));
        sources.extend(self.asks_instance.then_some("the instance's metadata"));
        sources.join(", ")
    }

    async fn of_profile(
        &self,
        context: &Context,
        files: &Files,
        means: ProfileSource,
        depth: usize,
    ) -> Result<Credential> {
        match means {
            ProfileSource::Keys { id, secret, token } => {
                Ok(Credential { access_key_id: id, secret_access_key: secret, session_token: token, expires_in: None })
            }
            ProfileSource::Process { command } => process(context, &command).await,
            ProfileSource::Sso(sso) => sso::keys(context, &sso).await,
            ProfileSource::WebIdentity { role, session, token_file } => {
                sts::with_web_identity(context, &self.region, &role, session.as_deref(), &token_file).await
            }
            ProfileSource::Role { role, session, external, from } => {
                let by = self.source_of_role(context, files, from, &role, depth).await?;
                sts::assume(context, &self.region, &by, &role, session.as_deref(), external.as_deref()).await
            }
        }
    }

    /// Returns the credential that assumes the role. The future is boxed, because a role can refer to another role.
    fn source_of_role<'a>(
        &'a self,
        context: &'a Context,
        files: &'a Files,
        from: RoleSource,
        role: &'a str,
        depth: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Credential>> + Send + 'a>> {
        Box::pin(async move {
            let nothing = |whom: &str| Error::config_invalid(format!("{whom} has no keys to assume {role}"));
            match from {
                RoleSource::Profile(source) => {
                    if depth >= DEEPEST {
                        return Err(Error::config_invalid(format!(
                            "the source profiles of {role} form a cycle, or a chain of more than {DEEPEST} profiles"
                        )));
                    }
                    let whom = format!("profile {source}");
                    // A profile may name itself as its source. Its own keys then assume its own role.
                    let own = matches!(files.means(&source, false)?, Some(ProfileSource::Role { from: RoleSource::Profile(next), .. }) if next == source);
                    let means = files.means(&source, own)?.ok_or_else(|| nothing(&whom))?;
                    self.of_profile(context, files, means, depth + 1).await
                }
                RoleSource::Place(place) => {
                    let found = match place.as_str() {
                        "Environment" => EnvCredentialProvider::new().provide_credential(context).await?,
                        "EcsContainer" => ECSCredentialProvider::new().provide_credential(context).await?,
                        "Ec2InstanceMetadata" if self.asks_instance => {
                            IMDSv2CredentialProvider::default().provide_credential(context).await?
                        }
                        "Ec2InstanceMetadata" => {
                            return Err(Error::config_invalid(
                                "the profile needs the instance metadata; to allow requests to it, set PENSTOCK_S3_IMDS=1",
                            ));
                        }
                        _ => None,
                    };
                    found.ok_or_else(|| nothing(&format!("credential_source {place}")))
                }
            }
        })
    }
}

impl ProvideCredential for Chain {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        if let Some(credential) = EnvCredentialProvider::new().provide_credential(context).await? {
            return Ok(Some(credential));
        }
        let files = Files::read(context).await;
        let named = context.env_var("AWS_PROFILE");
        let profile = named.clone().unwrap_or_else(|| "default".to_owned());
        if named.is_some() && !files.knows(&profile) {
            return Err(Error::config_invalid(format!(
                "AWS_PROFILE is {profile}, but neither the AWS config file nor the AWS credentials file contains this profile"
            )));
        }
        let means = files.means(&profile, false)?;
        if let (Some(role), Some(file), false) = (
            context.env_var("AWS_ROLE_ARN"),
            context.env_var("AWS_WEB_IDENTITY_TOKEN_FILE"),
            matches!(means, Some(ProfileSource::Role { .. })),
        ) {
            return sts::with_web_identity(context, &self.region, &role, None, &file).await.map(Some);
        }
        if let Some(means) = means {
            return self.of_profile(context, &files, means, 0).await.map(Some);
        }
        if self.has_container {
            return ECSCredentialProvider::new().provide_credential(context).await;
        }
        if self.asks_instance {
            return IMDSv2CredentialProvider::default().provide_credential(context).await;
        }
        Ok(None)
    }
}

/// Runs a `credential_process`. Errors do not quote its stderr, because it may contain secrets.
async fn process(context: &Context, command: &str) -> Result<Credential> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        version: u32,
        access_key_id: String,
        secret_access_key: String,
        session_token: Option<String>,
        expiration: Option<String>,
    }
    let words = words(command)?;
    let Some((program, rest)) = words.split_first() else {
        return Err(Error::config_invalid("credential_process is empty"));
    };
    let arguments: Vec<&str> = rest.iter().map(String::as_str).collect();
    let output = context.command_execute(program, &arguments).await;
    let output = output.map_err(|_| Error::config_invalid(format!("credential_process {program} cannot be run")))?;
    if !output.success() {
        return Err(Error::credential_invalid(format!("credential_process {program} ended with {}", output.status)));
    }
    let odd = |what: &str| Error::credential_invalid(format!("credential_process {program} {what}"));
    let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|_| odd("printed no keys"))?;
    if answer.version != 1 {
        return Err(odd("printed a version other than 1"));
    }
    let ends = answer
        .expiration
        .map(|text| text.parse().map_err(|_| odd("printed an invalid expiration time")))
        .transpose()?;
    Ok(Credential {
        access_key_id: answer.access_key_id,
        secret_access_key: answer.secret_access_key,
        session_token: answer.session_token,
        expires_in: ends,
    })
}
