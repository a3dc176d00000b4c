// SPDX-License-Identifier: Apache-2.0
//! Runs one stage from request to summary: list, plan, lock, copy (`to_folder`, `to_store`), report.

use std::sync::Arc;

use penstock_store::{AdaptiveLimit, LimitStore, Mirrors, Opened, Rates};
use penstock_types::{Deadline, Error, Metric, Metrics, Result, Scheme, Stopwatch};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::context::{StageContext, StateDir};
use crate::dest_dir::DestDir;
use crate::job::Job;
use crate::leader_heartbeat::Leader;
use crate::opened_source::{Source, is_same_folder};
use crate::plan::{StageOptions, StagePlan};
use crate::progress::Progress;
use crate::request::StageRequest;
use crate::summary::Summary;
use crate::to_folder;
use crate::to_store;
use crate::to_store::target::{self, Target};
use penstock_dataset::UrlList;
use penstock_dataset::manifest::{Manifest, index_selected, without_pattern};

/// A running stage.
pub type StageJob = Job<Summary>;

impl StageJob {
    /// Starts the stage on the runtime and returns immediately.
    pub fn start(request: StageRequest, runtime: &Handle) -> Self {
        Self::spawn(runtime, |progress, metrics, cancelled| run(request, progress, metrics, cancelled))
    }
}

async fn run(
    request: StageRequest,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    cancelled: watch::Receiver<bool>,
) -> Result<Summary> {
    let clock = Stopwatch::start();
    to_folder::check_apart(&request)?;
    if let Some(url) = &request.remote {
        target::check_apart(&request.source, url)?;
    }
    let open_leader = async |request: &StageRequest| {
        let path = request.destination.clone();
        let dest_dir = Arc::new(blocking(move || DestDir::open(&path)).await?);
        let leader = Leader::begin(&dest_dir, request.identity()).await?;
        Ok::<_, Error>((dest_dir, leader))
    };
    let mut leader = None;
    if request.is_awaited && !request.dry_run {
        leader = Some(open_leader(&request).await?);
    }
    let deadline = request.deadline.map_or(Deadline::NEVER, Deadline::within);
    let StageOptions { node, nodes, division, concurrency, .. } = &request.options;
    let governor = AdaptiveLimit::new(Rates { in_flight: *concurrency, ..request.rates }, metrics.clone());
    governor.take_part(division.weights.part(*node, *nodes));
    let mut stop = cancelled.clone();
    let listed = tokio::select! {
        listed = list(&request, &governor, &metrics, deadline) => listed,
        _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
    };
    let place = match &request.remote {
        Some(url) => url.as_folder().to_string(),
        None => request.destination.display().to_string(),
    };
    let planned = listed.and_then(|(source, manifest)| {
        let plan = match &request.remote {
            Some(url) => target::plan(&manifest, &request.options, url)?,
            None => StagePlan::new(&manifest, &request.options, &place)?,
        };
        Progress::add(&progress.objects, plan.items.len() as u64);
        Progress::add(&progress.bytes, plan.bytes);
        let all: u64 = plan.loads.iter().sum();
        if all > 0 {
            governor.take_part(plan.bytes as f64 / all as f64);
        }
        Ok((source, manifest, plan))
    });
    let mut summary = Summary {
        schema_version: 2,
        source: request.source.to_string(),
        destination: place,
        dry_run: request.dry_run,
        decompress: request.options.decompress,
        node: request.options.node,
        nodes: request.options.nodes,
        ..Summary::default()
    };
    let mut mirrors = None;
    let result = match planned {
        Ok((source, manifest, plan)) => {
            // For a URL list, report the server's URL as the source instead of the list file.
            if request.source.scheme == Scheme::File && !source.url.starts_with("file:") {
                summary.source = source.url.clone();
            }
            summary.objects = plan.items.len() as u64;
            summary.bytes = plan.bytes;
            summary.objects_total = manifest.objects.len() as u64;
            summary.shares = plan.loads.clone();
            summary.share_objects = plan.counts.clone();
            summary.share_requests = plan.all_requests.clone();
            summary.share_io_bytes = plan.costs.clone();
            if request.dry_run {
                summary.requests = plan.requests;
                summary.seconds = clock.elapsed().as_secs_f64();
                return Ok(summary);
            }
            if leader.is_none() {
                leader = Some(open_leader(&request).await?);
            }
            mirrors = source.mirrors.clone();
            let Some((dest_dir, leader)) = &leader else { return Err(Error::bug("a stage without its lock")) };
            let context = StageContext {
                request: &request,
                from: source,
                manifest,
                plan,
                site: StateDir { dest_dir: dest_dir.clone(), folder: leader.folder().clone() },
                progress: &progress,
                deadline,
                cancelled,
            };
            match &request.remote {
                Some(url) => {
                    // Reads and writes have separate limits on the number of requests in flight, so that a write never
                    // waits for a read.
                    match Target::open(url, &request.settings, &metrics, &governor.beside()) {
                        Ok(to) => to_store::transfer(to, context).await,
                        Err(error) => Err(error),
                    }
                }
                None => to_folder::transfer(context).await,
            }
        }
        Err(error) => Err(error),
    };
    let result = result.and_then(|manifest| {
        summary.manifest = manifest;
        let snapshot = progress.snapshot();
        let failures = progress.failures();
        // If the store denied every object, return that error.
        if snapshot.done == 0
            && let Some((_, first)) = failures.first()
            && matches!(first, Error::Denied { .. } | Error::Server { .. })
            && failures.iter().all(|(failure, _)| failure.code == first.code())
        {
            return Err(first.clone());
        }
        summary.skipped = snapshot.skipped;
        summary.moved = snapshot.done - snapshot.skipped;
        summary.bytes_in = snapshot.bytes_in;
        summary.bytes_out = snapshot.bytes_out;
        summary.resumed_bytes = snapshot.resumed_bytes;
        summary.refetched = snapshot.refetched;
        summary.without_checksum = snapshot.without_checksum;
        summary.mirrors = mirrors.map(|mirrors: Mirrors| mirrors.report()).unwrap_or_default();
        summary.requests = metrics.get(Metric::Requests);
        summary.retries = metrics.get(Metric::Retries);
        summary.throttles = metrics.get(Metric::Throttles);
        summary.throttle_wait_s = metrics.get(Metric::ThrottleWait) as f64 / 1e9;
        summary.seconds = clock.elapsed().as_secs_f64();
        summary.failed = failures.into_iter().map(|(failure, _)| failure).collect();
        Ok(summary)
    });
    if let Some((_, leader)) = leader {
        leader.end(&result).await;
    }
    result
}

async fn list(
    request: &StageRequest,
    governor: &Arc<AdaptiveLimit>,
    metrics: &Arc<Metrics>,
    deadline: Deadline,
) -> Result<(Source, Manifest)> {
    let named = {
        let source = request.source.clone();
        blocking(move || UrlList::load(&source)).await?
    };
    let (url, select) = match &named {
        Some(list) => (list.folder.clone(), request.select.clone()),
        None => without_pattern(&request.source, request.select.clone()),
    };
    let (opened, mirrors) = match &request.mirrors[..] {
        [] => (penstock_store::open(&url, &request.settings, metrics.clone())?, None),
        mirrors => {
            let first = (&url, &request.settings);
            let (opened, mirrors) = penstock_store::open_mirrored(first, mirrors, metrics.clone())?;
            (opened, Some(mirrors))
        }
    };
    let opened = Opened { store: Arc::new(LimitStore::new(opened.store, governor.clone())), ..opened };
    let folder_url = url.as_folder().to_string();
    let manifest = match (&request.manifest, named) {
        (Some(path), _) => {
            let path = path.clone();
            let (place, manifest) = (path.display().to_string(), blocking(move || Manifest::load(&path)).await?);
            let manifest = match manifest.source.as_deref() == Some(&folder_url) && manifest.url != folder_url {
                // An earlier stage of the same source wrote this manifest. Use the source objects that the manifest
                // records.
                true => manifest.of_source().ok_or_else(|| {
                    Error::corrupt(
                        &place,
                        "describes a staged copy, but does not record the source object of each file",
                    )
                })?,
                false => manifest,
            };
            if !is_same_folder(&manifest.url, &folder_url) {
                return Err(Error::config(
                    "--manifest",
                    format!("{place} is the manifest of {}, not of {folder_url}", manifest.url),
                ));
            }
            manifest.only(&select)?
        }
        (None, Some(list)) => list.manifest(&*opened.store, &opened.prefix, &select, deadline).await?,
        (None, None) => index_selected(&*opened.store, &opened.prefix, &url, &select, deadline).await?,
    };
    let mut source = Source::of(opened, &folder_url, manifest.url.clone());
    if let Some(mirrors) = mirrors {
        for entry in &manifest.objects {
            let key = source.prefix.join(entry.key.as_bytes());
            mirrors.know(&key, entry.version.as_ref(), entry.size);
        }
        source.mirrors = Some(mirrors);
    }
    Ok((source, manifest))
}
