// SPDX-License-Identifier: Apache-2.0
//! HTTP client for credential sources, which have no other access to the network. The client sends tokens only over TLS
//! or to this machine. It rejects requests to the metadata addresses of clouds unless the settings allow them. On a
//! machine outside a cloud, such a request would time out or reach an unrelated host.

use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use reqsign_core::{Error, HttpSend, Result};

use crate::transport::client::{Http, Parts, SendError};
use crate::transport::{is_loopback, is_metadata};

/// HTTP client that sends requests only to allowed hosts.
#[derive(Debug, Clone)]
pub(crate) struct GuardedClient {
    http: Http,
    /// Allows requests to metadata addresses.
    asks_metadata: bool,
    /// Other allowed hosts. They come from environment variables that set an endpoint for tokens or credentials.
    named: Vec<String>,
    /// A fixed token endpoint, and the endpoint from the credential file that replaces it.
    moved: Option<(&'static str, Uri)>,
}

impl GuardedClient {
    pub(crate) fn new(http: Http, asks_metadata: bool) -> Self {
        Self { http, asks_metadata, named: Vec::new(), moved: None }
    }

    /// Allows requests to the host of `url`.
    pub(crate) fn naming(mut self, url: Option<&str>) -> Self {
        let host = url.and_then(|url| url.parse::<Uri>().ok()).and_then(|url| Some(url.host()?.to_owned()));
        self.named.extend(host);
        self
    }

    /// Sends requests for the URL `from` to the URL `to` instead, if `to` is given.
    pub(crate) fn moving(mut self, from: &'static str, to: Option<Uri>) -> Self {
        self.moved = to.map(|to| (from, to));
        self
    }

    fn check(&self, uri: &Uri) -> Result<()> {
        let host = uri.host().unwrap_or_default();
        let is_named = self.named.iter().any(|named| named.eq_ignore_ascii_case(host));
        if is_metadata(host) {
            return match self.asks_metadata || is_named {
                true => Ok(()),
                false => Err(Error::config_invalid(format!(
                    "requests to the metadata address {host} are disabled; to enable them, set PENSTOCK_S3_IMDS, \
                     PENSTOCK_AZURE_IMDS or PENSTOCK_GS_METADATA to 1"
                ))),
            };
        }
        if uri.scheme() == Some(&Scheme::HTTPS) || is_loopback(host) || is_named {
            return Ok(());
        }
        Err(Error::config_invalid(format!("tokens are requested only over https, but the URL of {host} uses http")))
    }
}

/// Sends a request if its host is allowed. Limits the size and the duration of the response.
impl HttpSend for GuardedClient {
    async fn http_send(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        const LIMIT: Duration = Duration::from_secs(10);
        let broken = |text: String| Error::unexpected(text).set_retryable(true);
        let (mut head, body) = request.into_parts();
        if let Some((from, to)) = &self.moved
            && head.uri == *from
        {
            head.uri = to.clone();
        }
        self.check(&head.uri)?;
        let work = async {
            head.headers.insert(http::header::CONTENT_LENGTH, body.len().into());
            let answer =
                self.http.send(Request::from_parts(head, Parts::new([body]))).await.map_err(|error| match error {
                    SendError::Network(reason) => broken(reason),
                    SendError::Proxy(reason) => Error::unexpected(reason),
                    SendError::Certificate(reason) => {
                        Error::unexpected(format!("the server's certificate is not trusted: {reason}"))
                    }
                })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, 1 << 20)
                .collect()
                .await
                .map_err(|_| broken("the response was interrupted".into()))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(broken("no response in 10 s".into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(client: &GuardedClient, url: &str) -> bool {
        client.check(&url.parse().unwrap()).is_ok()
    }

    #[test]
    fn test_door_metadata_addresses_are_shut_unless_asked_for() {
        let urls = [
            "http://169.254.169.254/latest/api/token",
            "http://169.254.170.2/v2/credentials/x",
            "http://[fd00:ec2::254]/latest",
            "http://[::ffff:169.254.169.254]/",
            "http://metadata.google.internal/computeMetadata/v1/",
            "http://METADATA.google.internal./x",
            "https://169.254.169.254/",
            "http://100.100.100.200/",
        ];
        let (shut, open) = (GuardedClient::new(Http::new(), false), GuardedClient::new(Http::new(), true));
        for url in urls {
            assert!(!passes(&shut, url) && passes(&open, url), "{url}");
        }
        let container = shut.naming(Some("http://169.254.170.2/v2/credentials/x"));
        assert!(passes(&container, urls[1]) && !passes(&container, urls[0]));
    }

    #[test]
    fn test_door_tokens_travel_over_tls_or_on_this_machine() {
        let client = GuardedClient::new(Http::new(), true);
        assert!(passes(&client, "https://sts.example/") && passes(&client, "http://127.0.0.1:9/x"));
        assert!(!passes(&client, "http://sts.example/"));
    }
}
