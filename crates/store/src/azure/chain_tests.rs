// SPDX-License-Identifier: Apache-2.0
//! Tests Azure's token sources against recorded responses. The `az` login is tested elsewhere, in a process with its
//! own PATH.

use std::collections::HashMap;

use penstock_types::{Error, unix_now};
use serde_json::json;

use super::authorize::Authorizer;
use crate::StoreSettings;
use crate::credentials::test_token_server::{TestTokenServer, head, variables};

fn recorded(request: &str) -> (u16, String) {
    let line = request.lines().next().unwrap_or_default();
    let lower = request.to_lowercase();
    let ends = (unix_now().as_secs() + 3600).to_string();
    if line.starts_with("POST /tenant-1/oauth2/v2.0/token") {
        let token = match (request.contains("client_assertion=federated-1"), request.contains("client_secret=secret-1"))
        {
            (true, _) => "workload-token",
            (_, true) => "client-token",
            _ => return (401, json!({"error": "invalid_client", "error_description": "secret-told"}).to_string()),
        };
        return (200, json!({"token_type": "Bearer", "expires_in": 3599, "access_token": token}).to_string());
    }
    if line.starts_with(
        "GET /msi/token?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com%2F&client_id=client-1 ",
    ) && lower.contains("x-identity-header: header-secret")
    {
        return (200, json!({"access_token": "managed-token", "expires_on": ends, "token_type": "Bearer"}).to_string());
    }
    if line.starts_with("GET /imds?") && lower.contains("metadata: true") {
        return (200, json!({"access_token": "node-token", "expires_on": ends}).to_string());
    }
    (404, String::new())
}

async fn token(env: &HashMap<String, String>) -> Result<String, Error> {
    let settings = StoreSettings::from_env(env).unwrap().azure;
    let authorizer = Authorizer::new(&settings, None);
    let mut last = String::new();
    for _ in 0..4 {
        let mut request = head("https://acc.blob.example/c/k");
        authorizer.authorize(&mut request, "az://c/k").await?;
        last = request.headers["authorization"].to_str().unwrap().to_owned();
    }
    Ok(last)
}

const WHO: [(&str, &str); 3] =
    [("AZURE_TENANT_ID", "tenant-1"), ("AZURE_CLIENT_ID", "client-1"), ("AZURE_AUTHORITY_HOST", "DESK")];

#[tokio::test]
async fn test_azure_tokens_of_each_source_are_asked_once() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("federated"), "federated-1").unwrap();
    for (more, want) in [
        (vec![("AZURE_FEDERATED_TOKEN_FILE", "HOME/federated")], "workload-token"),
        (vec![("AZURE_CLIENT_SECRET", "secret-1")], "client-token"),
        (vec![("IDENTITY_ENDPOINT", "DESK/msi/token"), ("IDENTITY_HEADER", "header-secret")], "managed-token"),
    ] {
        let before = server.seen().len();
        let env = variables(&[&WHO[..], &more].concat(), &server, home.path());
        assert_eq!(token(&env).await.unwrap(), format!("Bearer {want}"));
        assert_eq!(server.seen().len(), before + 1);
    }
}

#[tokio::test]
async fn test_azure_source_that_fails_ends_the_search_and_tells_no_secret() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let more =
        [("AZURE_CLIENT_SECRET", "secret-wrong"), ("PENSTOCK_AZURE_IMDS", "1"), ("AZURE_IMDS_ENDPOINT", "DESK/imds")];
    let error = token(&variables(&[&WHO[..], &more].concat(), &server, home.path())).await.unwrap_err().to_string();
    assert!(!error.contains("secret-"), "{error}");
    assert!(server.seen().iter().all(|request| !request.contains("/imds")), "the instance is somebody else");
    let half = token(&variables(&[("AZURE_CLIENT_SECRET", "secret-1")], &server, home.path())).await.unwrap_err();
    assert!(half.to_string().contains("AZURE_TENANT_ID"), "{half}");
}

#[tokio::test]
async fn azure_metadata_is_asked_only_if_enabled() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let mut env = variables(&[("AZURE_IMDS_ENDPOINT", "DESK/imds")], &server, home.path());
    assert!(token(&env).await.is_err());
    assert!(server.seen().is_empty());
    env.insert("PENSTOCK_AZURE_IMDS".to_owned(), "1".to_owned());
    assert_eq!(token(&env).await.unwrap(), "Bearer node-token");
}
