//! `foldmq demo`: from nothing to the windows of 27,004 flights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::feed::{self, Delays, Departure, QUEUE, SINK, Window, WindowKey};
use super::serve::quit_signal;
use super::{ListenArgs, StoreArgs, say};
use crate::postgres::default_data_dir;
use crate::server::{self, Config, Server};

/// Name of the demo's query.
const QUERY: &str = "flights-hourly";
/// Messages of one push.
const PUSH: usize = 500;
/// Longest wait for the last windows.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  foldmq demo
  foldmq demo --keep
  foldmq demo --data-dir /tmp/try")]
pub(super) struct DemoArgs {
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Stay up when the feed is folded, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// The compiled example fold. [default: built from the checkout with cargo]
    #[arg(long)]
    module: Option<PathBuf>,
}

/// Runs the demo.
pub(super) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let mut quit = quit_signal()?;
    let module = match &args.module {
        Some(path) => {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => build_module().await?,
    };
    let mut config = Config::new(args.listen.addr(), args.store.store(Some(demo_dir()?)))?;
    let server = match Server::start(config.clone()).await {
        // The usual port belongs to somebody else, perhaps to another demo: any port will do.
        Err(server::Error::Listen(..)) if args.listen.listen.is_none() => {
            config.listen.set_port(0);
            Server::start(config).await?
        }
        started => started?,
    };
    say(&format!("store:   {}", server.store()));
    say(&format!("broker:  {}", server.url()));
    let demo = Demo::new(server.url())?;
    let told = tokio::select! {
        told = demo.tell(module) => told,
        () = quit.recv() => Err(anyhow::anyhow!("interrupted")),
    };
    if told.is_ok() && args.keep {
        say("\nThe broker stays up. Ctrl-C ends it.");
        quit.recv().await;
    }
    server.stop().await?;
    told?;
    Ok(ExitCode::SUCCESS)
}

/// A data folder that belongs to this folder alone, so that two copies do not meet.
fn demo_dir() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder")?;
    let digest = hex::encode(Sha256::digest(here.as_os_str().as_encoded_bytes()));
    Ok(default_data_dir().join(format!("demo-{}", &digest[..8])))
}

/// Builds the example fold with cargo.
pub(super) async fn build_module() -> anyhow::Result<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ensure!(
        root.join("examples/flights/Cargo.toml").exists(),
        "the example fold is built from the source checkout, which is not here: give a compiled \
         one with --module"
    );
    let spin = ProgressBar::new_spinner().with_message("building the example fold with cargo");
    spin.enable_steady_tick(Duration::from_millis(120));
    let target = "wasm32-unknown-unknown";
    // Where cargo comes without rustup, the target comes with the toolchain.
    let installed = command("rustup", &["target", "list", "--installed"], root).await;
    if installed.is_ok_and(|list| !list.lines().any(|line| line == target)) {
        command("rustup", &["target", "add", target], root).await?;
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_unset| "cargo".to_owned());
    let build = ["build", "--quiet", "-p", "flights", "--release", "--target", target];
    command(&cargo, &build, root).await?;
    let metadata =
        command(&cargo, &["metadata", "--no-deps", "--format-version", "1"], root).await?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let folder = metadata["target_directory"].as_str().context("cargo names no target folder")?;
    let path = Path::new(folder).join(target).join("release/flights.wasm");
    spin.finish_and_clear();
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

async fn command(program: &str, args: &[&str], folder: &Path) -> anyhow::Result<String> {
    let output = tokio::process::Command::new(program)
        .args(args)
        .current_dir(folder)
        .output()
        .await
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed:\n{}", args.join(" "), text.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The demo's side of the wire.
struct Demo {
    http: reqwest::Client,
    base: String,
}

/// What came out of the sink.
#[derive(Default)]
struct Seen {
    windows: BTreeMap<WindowKey, Delays>,
    repeated: BTreeSet<WindowKey>,
}

impl Demo {
    fn new(base: String) -> anyhow::Result<Arc<Self>> {
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build()?;
        Ok(Arc::new(Self { http, base }))
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Option<Value>> {
        let response = request.send().await?;
        let (status, path) = (response.status(), response.url().path().to_owned());
        let body = response.bytes().await?;
        if status == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        ensure!(
            status.is_success(),
            "{path} answered {status}: {}",
            String::from_utf8_lossy(&body)
        );
        if body.is_empty() {
            return Ok(Some(Value::Null));
        }
        Ok(Some(serde_json::from_slice(&body).with_context(|| path)?))
    }

    async fn post(&self, path: &str, body: &impl serde::Serialize) -> anyhow::Result<Value> {
        let request = self.http.post(format!("{}{path}", self.base)).json(body);
        self.send(request).await?.with_context(|| format!("{path} answered 404"))
    }

    async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.send(self.http.delete(format!("{}{path}", self.base))).await.map(drop)
    }

    async fn status(&self) -> anyhow::Result<Value> {
        let request = self.http.get(format!("{}/streams/v1/queries/{QUERY}", self.base));
        self.send(request).await?.context("the query is gone")
    }

    /// The whole story.
    async fn tell(self: &Arc<Self>, module: Vec<u8>) -> anyhow::Result<()> {
        // A second run starts where the first one did.
        self.delete(&format!("/streams/v1/queries/{QUERY}")).await?;
        for queue in [QUEUE, SINK] {
            self.delete(&format!("/api/v1/resources/queues/{queue}")).await?;
        }
        let size = module.len();
        let upload = self.http.post(format!("{}/streams/v1/modules", self.base)).body(module);
        let uploaded = self.send(upload).await?.context("no upload route")?;
        let hash = uploaded["module"].as_str().context("the upload names no module")?.to_owned();
        say(&format!("module:  {} ({} KB)", &hash[..16], size / 1024));
        let registration = json!({
            "name": QUERY, "source_queue": QUEUE, "sink_queue": SINK, "module": hash,
        });
        self.post("/streams/v1/queries", &registration).await?;
        say(&format!("query:   {QUERY}, {QUEUE} -> {SINK}, one-hour windows on departed_at\n"));

        let expected = feed::expected()?;
        let feed = feed::departures()?;
        let total = feed.len();
        let progress = MultiProgress::new();
        let (pushed, closed) = bars(&progress, total, expected.len())?;
        let started = Instant::now();
        let reader = tokio::spawn(Arc::clone(self).read(expected.len(), closed.clone()));
        self.push_all(feed, &pushed).await?;
        pushed.finish();
        self.wait_for_lag_zero().await?;
        let took = started.elapsed();
        // The feed has ended: nobody else will say so to the windows that are still open.
        self.post(&format!("/streams/v1/queries/{QUERY}/flush"), &json!({"watermark": "now"}))
            .await?;
        let seen = reader.await??;
        closed.finish();
        self.summary(&expected, &seen, total, took).await
    }

    /// Pushes each airport's departures in order; the airports side by side.
    async fn push_all(
        self: &Arc<Self>,
        feed: Vec<Departure>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let mut by_origin: BTreeMap<String, Vec<Departure>> = BTreeMap::new();
        for departure in feed {
            by_origin.entry(departure.origin.clone()).or_default().push(departure);
        }
        let mut pushers = tokio::task::JoinSet::new();
        for (origin, departures) in by_origin {
            let (demo, bar) = (Arc::clone(self), bar.clone());
            pushers.spawn(async move {
                for chunk in departures.chunks(PUSH) {
                    let items: Vec<Value> = chunk
                        .iter()
                        .map(|d| {
                            json!({"queue": QUEUE, "partition": origin, "transactionId": d.id,
                                   "payload": &d.payload})
                        })
                        .collect();
                    let answer = demo.post("/api/v1/push", &json!({"items": items})).await?;
                    let all = answer.as_array().context("a push answers a list")?;
                    if let Some(bad) = all.iter().find(|item| item["status"] != "queued") {
                        bail!("a departure was not stored: {bad}");
                    }
                    bar.inc(chunk.len() as u64);
                }
                Ok(())
            });
        }
        while let Some(done) = pushers.join_next().await {
            done??;
        }
        Ok(())
    }

    /// Consumes the sink until all windows are there, and a little longer for one too many.
    async fn read(self: Arc<Self>, expected: usize, bar: ProgressBar) -> anyhow::Result<Seen> {
        let mut seen = Seen::default();
        let path = format!(
            "{}/api/v1/pop/queue/{SINK}?batch=500&partitions=8&autoAck=true&wait=true&timeout=1000\
             &consumerGroup=demo&subscriptionMode=all",
            self.base
        );
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.send(self.http.get(&path)).await?.context("no pop route")?;
            let messages = answer["messages"].as_array().cloned().unwrap_or_default();
            if messages.is_empty() && (seen.windows.len() >= expected || Instant::now() > deadline)
            {
                return Ok(seen);
            }
            for message in messages {
                let window: Window =
                    serde_json::from_value(message["data"].clone()).context("a window")?;
                let (key, delays) = window.split();
                bar.set_message(format!(
                    "{} {} | {} departures, mean delay {:+.1} min",
                    key.0,
                    key.1,
                    delays.count,
                    mean(&delays)
                ));
                bar.inc(1);
                if seen.windows.insert(key.clone(), delays).is_some() {
                    seen.repeated.insert(key);
                }
            }
        }
    }

    async fn wait_for_lag_zero(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status().await?;
            if status["lag_messages"] == 0 {
                return Ok(());
            }
            ensure!(
                status["state"] == "running",
                "the query is {}: {}",
                status["state"],
                status["last_error"]
            );
            ensure!(Instant::now() < deadline, "still {} behind", status["lag_messages"]);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn summary(
        &self,
        expected: &BTreeMap<WindowKey, Delays>,
        seen: &Seen,
        total: usize,
        took: Duration,
    ) -> anyhow::Result<()> {
        let status = self.status().await?;
        let count = |n: usize| HumanCount(n as u64).to_string();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = total as f64 / took.as_secs_f64();
        say(&format!("\nmessages in    {}", count(total)));
        say(&format!("cancelled      {} (counted apart)", status["tallies"]["cancelled"]));
        say(&format!("windows out    {}", count(seen.windows.len())));
        say(&format!("rate           {rate:.0} messages/s, from first push to lag 0"));
        say(&format!("cycles         {}", status["cycles"]));
        say(&format!("lag            {}", status["lag_messages"]));
        if let Some(key) = seen.repeated.first() {
            bail!("window {} {} came twice", key.0, key.1);
        }
        ensure!(
            seen.windows == *expected,
            "the windows differ from those that the feed must give ({} instead of {})",
            seen.windows.len(),
            expected.len()
        );
        say("check          equal to the expected windows, each once");
        say(&format!(
            "\nWhere to go on:
  README.md                      the routes, with curl
  examples/flights/src/lib.rs    the fold that just ran
  guest-sdk/README.md            write your own
  foldmq demo --keep             the same, and the broker stays up:
    curl {base}/streams/v1/queries/{QUERY}
    curl '{base}/api/v1/pop/queue/{SINK}?batch=5&subscriptionMode=all&consumerGroup=me'",
            base = self.base
        ));
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a mean for people")]
fn mean(delays: &Delays) -> f64 {
    delays.sum as f64 / delays.count as f64
}

fn bars(
    progress: &MultiProgress,
    messages: usize,
    windows: usize,
) -> anyhow::Result<(ProgressBar, ProgressBar)> {
    let style = |unit: &str| {
        ProgressStyle::with_template(&format!(
            "{{prefix:8}} [{{bar:32}}] {{human_pos}}/{{human_len}} {unit} {{msg}}"
        ))
        .map(|style| style.progress_chars("=> "))
    };
    let pushed = progress.add(ProgressBar::new(messages as u64).with_prefix("pushed"));
    pushed.set_style(style("messages {per_sec}")?);
    let closed = progress.add(ProgressBar::new(windows as u64).with_prefix("closed"));
    closed.set_style(style("windows")?);
    Ok((pushed, closed))
}
