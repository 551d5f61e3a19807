// Package batches runs files of requests as jobs, as OpenAI's batches are: a batch is a
// journal in the log of the jobs, whose lines become jobs whose names follow from the
// batch and the line, so that creating them twice makes them once.
package batches
