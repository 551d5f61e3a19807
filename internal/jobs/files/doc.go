// Package files stores the input and output files of batches and serves them over HTTP. A Store is
// a folder of this process, or a log that several processes replicate.
package files
