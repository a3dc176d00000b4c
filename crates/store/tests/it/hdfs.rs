// SPDX-License-Identifier: Apache-2.0
//! Tests HDFS with a real NameNode and two DataNodes: the store suite, and reads while a DataNode dies or hangs.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{Hdfs, ObjectRef, Precondition, PutOptions, Store, StoreSettings, open, read_whole, suite};
use penstock_types::{ByteRange, Deadline, Key, Result, Stopwatch};
use tokio::sync::{Mutex, MutexGuard};

/// One cluster for all tests of this binary. Tests run one at a time, because some of them stop a node.
static CLUSTER: Mutex<Option<Cluster>> = Mutex::const_new(None);

/// Handle of `tests/hdfs/cluster.py`, which ends when its stdin is closed, at the latest with this process.
struct Cluster {
    _child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    facts: serde_json::Value,
}

impl Cluster {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hdfs/cluster.py");
        let mut child =
            Command::new("python3").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self { _child: child, stdin, stdout, facts: serde_json::Value::Null };
        this.read();
        this
    }

    fn read(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        self.facts = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no HDFS: `make setup-peers`"));
    }

    fn authority(&self) -> &str {
        self.facts["authority"].as_str().unwrap()
    }

    fn env(&self) -> HashMap<String, String> {
        [("HADOOP_CONF_DIR", self.facts["conf"].as_str().unwrap()), ("HADOOP_USER_NAME", "penstock")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    fn store(&self) -> Hdfs {
        let settings = StoreSettings::from_env(&self.env()).unwrap();
        Hdfs::new(self.authority(), &settings.hdfs, Arc::default()).unwrap()
    }

    fn signal(&self, node: usize, name: &str) {
        let pid = self.facts["nodes"][node].to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn start_node(&mut self, node: usize) {
        writeln!(self.stdin, "start {node}").unwrap();
        self.read();
    }
}

async fn cluster() -> MutexGuard<'static, Option<Cluster>> {
    let mut cluster = CLUSTER.lock().await;
    if cluster.is_none() {
        *cluster = Some(Cluster::start());
    }
    cluster
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_opened_hdfs_of_the_default_file_system_stands_the_suite() {
    let guard = cluster().await;
    let settings = StoreSettings::from_env(&guard.as_ref().unwrap().env()).unwrap();
    suite::run(open(&"hdfs:///".parse().unwrap(), &settings, Arc::default()).unwrap().store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_hdfs_writes_of_one_size_differ_in_version_and_leave_nothing_else() {
    let guard = cluster().await;
    let store = guard.as_ref().unwrap().store();
    let key = Key::from("versions/a");
    let mut seen = Vec::new();
    for _ in 0..10 {
        let put = store.put(&key, vec![Bytes::from_static(b"same")], &PutOptions::default(), soon()).await.unwrap();
        assert_eq!(store.head(&key, soon()).await.unwrap(), put);
        seen.push(put.version);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 10);
    let absent = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
    let racers = (0..4).map(|_| store.put(&key, vec![Bytes::from_static(b"no")], &absent, soon()));
    for refused in futures::future::join_all(racers).await {
        assert_eq!(refused.unwrap_err().code(), "precondition");
    }
    let listed: Vec<_> = store.list(&Key::from("versions/"), None, soon()).try_collect().await.unwrap();
    assert_eq!(listed.iter().map(|meta| &meta.key).collect::<Vec<_>>(), [&key]);
}

/// Reads every object whole and returns the longest read time.
async fn read_all(store: &dyn Store, keys: &[(Key, Bytes)]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for (key, want) in keys {
        let clock = Stopwatch::start();
        let (_, bytes) = read_whole(store, &ObjectRef::current(key.clone()), None, soon()).await?;
        assert!(bytes == *want, "{key} came back otherwise");
        longest = longest.max(clock.elapsed());
    }
    Ok(longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_hdfs_reads_go_on_while_a_datanode_hangs_and_after_it_died() {
    let mut guard = cluster().await;
    let cluster = guard.as_mut().unwrap();
    let url = format!("hdfs://{}/", cluster.authority()).parse().unwrap();
    let store = open(&url, &StoreSettings::from_env(&cluster.env()).unwrap(), Arc::default()).unwrap().store;
    let mut objects = Vec::new();
    for at in 0..8u8 {
        // Each object has three blocks.
        let (key, bytes) = (Key::new(format!("faults/{at}")), Bytes::from(vec![at; 2_500_000]));
        store.put(&key, vec![bytes.clone()], &PutOptions::default(), soon()).await.unwrap();
        objects.push((key, bytes));
    }
    read_all(&*store, &objects).await.unwrap();

    // One read has started when the DataNode hangs, and seven start afterwards. hdfs-native alone takes at least 60 s
    // for each.
    let object = ObjectRef::current(objects[0].0.clone());
    let mut begun = store.get_ranges(&object, &[ByteRange::WHOLE], soon()).await.unwrap();
    let first = begun.chunks.try_next().await.unwrap().unwrap();
    cluster.signal(1, "-STOP");
    let rest: Vec<_> = begun.chunks.try_collect().await.unwrap();
    let total: usize = first.bytes.len() + rest.iter().map(|chunk| chunk.bytes.len()).sum::<usize>();
    assert_eq!(total, objects[0].1.len());
    let hung = read_all(&*store, &objects[1..]).await.unwrap();
    cluster.signal(1, "-CONT");
    // The limit is generous, because shared machines vary; it only has to be below the stall of hdfs-native.
    assert!(hung < Duration::from_secs(40), "one read took {hung:?} beside a DataNode that hangs");
    eprintln_of(&format!("slowest read beside a hung DataNode: {hung:?}"));

    let mut begun = store.get_ranges(&object, &[ByteRange::WHOLE], soon()).await.unwrap();
    begun.chunks.try_next().await.unwrap();
    cluster.signal(0, "-KILL");
    begun.chunks.try_collect::<Vec<_>>().await.unwrap();
    let killed = read_all(&*store, &objects).await.unwrap();
    eprintln_of(&format!("slowest read after a DataNode was killed: {killed:?}"));
    cluster.start_node(0);
    read_all(&*store, &objects).await.unwrap();
}

#[expect(clippy::print_stderr, reason = "shown by `cargo test -- --nocapture`")]
fn eprintln_of(text: &str) {
    eprintln!("{text}");
}
