#![doc = include_str!("ARCHITECTURE.md")]

pub mod broker;
pub mod cli;
pub mod db;
pub mod fold;
pub mod hosted;
pub mod http;
pub mod log;
pub mod postgres;
pub mod server;
pub mod telemetry;
pub mod types;
