// Package batches implements OpenAI's batch API: a file of requests runs as one job per line. A
// batch is a journal in the log of the jobs. Job names are derived from the batch id and the line
// number, so creating a line's job twice has no effect.
package batches
