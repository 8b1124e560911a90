//! The broker as a process of its own, to be killed.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Client, eventually};

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A running `foldmq serve`.
pub(crate) struct BrokerProcess {
    child: Child,
    pub(crate) client: Client,
}

impl BrokerProcess {
    /// Starts `foldmq serve` on a port with further arguments, and waits until it is healthy.
    pub(crate) async fn start(port: u16, args: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let child = Command::new(env!("CARGO_BIN_EXE_foldmq"))
            .args(["serve", "--listen", &listen])
            .args(args)
            .env_remove("DATABASE_URL")
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the broker starts");
        let mut this = Self { child, client: Client::new(format!("http://{listen}")) };
        eventually("the broker is healthy", async || {
            let ended = this.child.try_wait().expect("a child of this process");
            assert!(ended.is_none(), "the broker ended: {ended:?}");
            let health = this.client.request(reqwest::Method::GET, "/health");
            this.client.try_send(health).await.ok().filter(|a| a.status == 200)
        })
        .await;
        this
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("the broker runs");
    }

    /// SIGKILL: nothing is finished, nothing is given back.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("a child of this process");
    }

    /// SIGTERM; gives the exit code.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        eventually("the broker ends", async || self.child.try_wait().expect("a child")).await.code()
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.kill();
        }
    }
}
