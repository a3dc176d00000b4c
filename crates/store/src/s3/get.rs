// SPDX-License-Identifier: Apache-2.0
//! HEAD and GET requests for one key. `transport::ranged_get` uses them for reads.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Response};
use hyper::body::Incoming;
use penstock_types::{Deadline, Key, Metric, Metrics, Result};

use super::{Ask, Bucket, composite_checksum};
use crate::transport::{Remote, quoted, ranged_get};
use crate::{Meta, Version};

const MODE: &str = "x-amz-checksum-mode";

#[async_trait]
impl Remote for Bucket {
    fn place(&self, key: &Key) -> String {
        crate::place(&self.root, key)
    }

    fn shown(&self) -> &str {
        self.endpoint.shown()
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let mut ask = Ask::new(Method::HEAD, Metric::Heads, Some(key));
        ask.headers.insert(MODE, HeaderValue::from_static("ENABLED"));
        let answer = self.send(ask, deadline).await?;
        let size = ranged_get::length(self, key, answer.headers())?;
        self.vouched(self.meta(key, size, answer.headers()), answer.headers(), deadline).await
    }

    async fn get(
        &self,
        key: &Key,
        pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>> {
        let mut ask = Ask::new(Method::GET, Metric::Gets, Some(key));
        if let Some(version) = pin {
            ask.headers.insert(header::IF_MATCH, quoted(version)?);
        }
        match range {
            Some(range) => ask.headers.insert(header::RANGE, range),
            None => ask.headers.insert(MODE, HeaderValue::from_static("ENABLED")),
        };
        self.send(ask, deadline).await
    }

    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta {
        self.described(key, size, headers)
    }

    async fn vouched(&self, meta: Meta, headers: &HeaderMap, deadline: Deadline) -> Result<Meta> {
        composite_checksum::vouched(self, meta, headers, deadline).await
    }

    fn slices(&self) -> bool {
        false
    }
}
