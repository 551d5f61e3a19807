package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// Service serves the files of a store over HTTP.
type Service struct {
	store Store
	api   *api.Server
	log   *slog.Logger
	inUse func(id string) string
}

// Serve returns the service of the files of s. inUse returns the batch that still reads a file, or
// "".
func Serve(s Store, a *api.Server, log *slog.Logger, inUse func(id string) string) *Service {
	return &Service{store: s, api: a, log: log, inUse: inUse}
}

// Routes returns the handlers of the file routes.
func (v *Service) Routes() routes.Handlers {
	return routes.Handlers{
		"POST /v1/files":     routes.Answer(v.api, v.postFile),
		"GET /v1/files":      routes.Answer(v.api, v.listFiles),
		"GET /v1/files/*":    routes.Answer(v.api, v.getFile),
		"DELETE /v1/files/*": routes.Answer(v.api, v.deleteFile),
	}
}

// postFile takes multipart/form-data with a file and a purpose, as in OpenAI's API.
func (v *Service) postFile(w http.ResponseWriter, r *http.Request) (any, error) {
	if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t != "multipart/form-data" {
		return nil, apierr.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type",
			Message: "Send the file as multipart/form-data with the parts 'file' and 'purpose'."}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxFileBytes+(1<<20))
	m, err := r.MultipartReader()
	if err != nil {
		return nil, apierr.Problem{Status: http.StatusBadRequest, Message: "The multipart body cannot be read: " + err.Error() + "."}
	}
	var f File
	purpose, have := "", false
	keep := false
	defer func() {
		if have && !keep {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), abandonLimit)
			defer cancel()
			_ = v.store.Delete(ctx, f.ID) // it was never acknowledged
		}
	}()
	for parts := 0; ; parts++ {
		p, err := m.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fileProblem(sendError{err})
		}
		if parts > 16 {
			return nil, apierr.Problem{Status: http.StatusBadRequest, Message: "The multipart body has too many parts."}
		}
		switch p.FormName() {
		case "purpose":
			b, err := io.ReadAll(io.LimitReader(p, 64))
			if err != nil {
				return nil, fileProblem(sendError{err})
			}
			purpose = string(b)
		case "file":
			if have {
				return nil, apierr.Problem{Status: http.StatusBadRequest, Param: "file", Message: "Send one 'file' at a time."}
			}
			name := p.FileName()
			if len(name) > 255 || !utf8.ValidString(name) {
				return nil, apierr.Problem{Status: http.StatusBadRequest, Param: "file", Message: "The file's name must be UTF-8 of at most 255 bytes."}
			}
			if f, err = v.store.Put(r.Context(), File{ID: "file-" + strings.ToLower(rand.Text()), Filename: name, Purpose: "batch",
				CreatedAt: time.Now().Unix(), Holder: httpserver.KeyName(r.Context())}, sentBy{p}); err != nil {
				return nil, fileProblem(err)
			}
			have = true
		}
	}
	switch {
	case !have:
		return nil, apierr.Problem{Status: http.StatusBadRequest, Param: "file", Message: "The part 'file' is missing."}
	case purpose != "batch":
		return nil, apierr.Problem{Status: http.StatusBadRequest, Param: "purpose",
			Message: fmt.Sprintf("'purpose' is %.40q; only \"batch\" is known.", purpose)}
	}
	keep = true
	return withoutOwner(f), nil
}

// sentBy marks read errors as caused by the client's upload rather than by the store.
type sentBy struct{ r io.Reader }

type sendError struct{ error }

func (e sendError) Unwrap() error { return e.error }

func (s sentBy) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = sendError{err}
	}
	return n, err
}

func fileProblem(err error) error {
	var big *http.MaxBytesError
	var sent sendError
	switch {
	case errors.As(err, &big), errors.Is(err, ErrSize):
		return apierr.Problem{Status: http.StatusRequestEntityTooLarge, Code: "file_too_large", Param: "file",
			Message: fmt.Sprintf("The limit of a file is %d bytes: %v.", maxFileBytes, err)}
	case errors.Is(err, ErrNotFound):
		return apierr.Problem{Status: http.StatusNotFound, Code: "file_not_found", Message: err.Error() + "."}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return apierr.Problem{Status: http.StatusBadRequest, Message: "The multipart body ends too soon."}
	case errors.As(err, &sent) && errors.Is(err, httpserver.ErrSlowBody):
		return apierr.Problem{Status: http.StatusRequestTimeout, Code: "body_not_read", Message: "The file was not accepted: " +
			strings.TrimPrefix(sent.Error(), "api: ") + "."}
	case errors.As(err, &sent):
		return apierr.Problem{Status: http.StatusBadRequest, Message: "The multipart body cannot be read: " + sent.Error() + "."}
	}
	return routes.Problem(err)
}

// withoutOwner returns f without its owner, which the API must not return.
func withoutOwner(f File) File {
	f.Holder = ""
	return f
}

// visible reports whether the request's API key may see the file.
func visible(ctx context.Context, f File) bool {
	return f.Purpose != forContexts && httpserver.CanRead(ctx, f.Holder)
}

// lookup returns the file with this id. Files that the request's API key may not see count as
// missing.
func (v *Service) lookup(ctx context.Context, id string) (File, error) {
	f, err := v.store.Get(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && !visible(ctx, f):
		return f, routes.NotFound("file", id)
	case err != nil:
		return f, routes.Unreadable("The file", err)
	}
	return f, nil
}

func (v *Service) listFiles(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	limit, err := routes.Limit(r, maxFiles, 10000)
	if err != nil {
		return nil, err
	}
	files, err := v.store.List(r.Context())
	files = slices.DeleteFunc(files, func(f File) bool { return !visible(r.Context(), f) })
	if err != nil {
		return nil, routes.Unreadable("The list of files", err)
	}
	out := struct {
		Object  string `json:"object"`
		Data    []File `json:"data"`
		HasMore bool   `json:"has_more"`
	}{Object: "list"}
	out.Data, out.HasMore = routes.Page(files, q.Get("after"), limit, func(f File) string { return f.ID },
		func(f File) bool { return q.Get("purpose") == "" || f.Purpose == q.Get("purpose") })
	for i, f := range out.Data {
		out.Data[i] = withoutOwner(f)
	}
	return out, nil
}

func (v *Service) getFile(w http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := routes.PathID(r, "/v1/files/")
	f, err := v.lookup(r.Context(), id)
	switch {
	case err != nil:
		return nil, err
	case rest == "":
		return withoutOwner(f), nil
	case rest == "content":
		return nil, v.content(r.Context(), w, id)
	}
	return nil, routes.NoSuchURL(r)
}

// content sends a file. An error means that no byte was sent.
func (v *Service) content(ctx context.Context, w http.ResponseWriter, id string) error {
	file, f, err := v.store.Open(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return routes.NotFound("file", id)
	case errors.Is(err, journal.ErrDamaged), errors.Is(err, os.ErrNotExist):
		v.log.Error("jobs: a file cannot be read", "file", id, "error", err)
		return apierr.Problem{Status: http.StatusInternalServerError, Code: "file_damaged",
			Message: "The file cannot be read: " + err.Error() + "."}
	case err != nil:
		return routes.Unreadable("The file", err)
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Content-Length", strconv.FormatInt(f.Bytes, 10))
	rc, limit := http.NewResponseController(w), v.api.Limits().WriteTimeout
	buf := make([]byte, 1<<18)
	for {
		n, err := file.Read(buf)
		if n > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(limit))
			if _, err := w.Write(buf[:n]); err != nil {
				return nil // the client disconnected
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler) // abort the connection, so that a truncated file does not look complete
		}
	}
}

func (v *Service) deleteFile(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, rest := routes.PathID(r, "/v1/files/")
	_, err := v.lookup(r.Context(), id)
	if err == nil && rest != "" {
		err = routes.NotFound("file", id)
	}
	if err != nil {
		return nil, err
	}
	if b := v.inUse(id); b != "" {
		return nil, apierr.Problem{Status: http.StatusConflict, Code: "file_in_use", Message: "The file is the input of " +
			b + ", which still runs; cancel that first."}
	}
	if err := v.store.Delete(r.Context(), id); err != nil {
		return nil, fileProblem(err)
	}
	return map[string]any{"id": id, "object": "file", "deleted": true}, nil
}
