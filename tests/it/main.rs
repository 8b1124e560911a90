//! Tests on a real PostgreSQL and over real HTTP: one binary, modules by area.

mod admin;
mod api;
mod auth;
mod cli;
mod encryption;
mod hosted;
mod maintenance;
mod model;
mod postgres;
mod retention;
mod streams;
mod support;
mod tenancy;
mod tidy;
mod transactions;
