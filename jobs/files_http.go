package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"shoal/api"
)

// postFile takes multipart/form-data with a file and a purpose, as OpenAI's.
func (v *Service) postFile(w http.ResponseWriter, r *http.Request) {
	f, err := v.upload(w, r)
	if err != nil {
		v.api.WriteError(w, err)
		return
	}
	v.api.WriteJSON(w, http.StatusOK, f)
}

func (v *Service) upload(w http.ResponseWriter, r *http.Request) (File, error) {
	if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t != "multipart/form-data" {
		return File{}, api.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Message: "Send the file as multipart/form-data with the parts 'file' and 'purpose'."}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxFileBytes+(1<<20))
	m, err := r.MultipartReader()
	if err != nil {
		return File{}, api.Problem{Status: http.StatusBadRequest, Message: "The multipart body cannot be read: " + err.Error() + "."}
	}
	var f File
	purpose, have := "", false
	keep := false
	defer func() {
		if have && !keep {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), acceptLimit)
			defer cancel()
			_ = v.files.Delete(ctx, f.ID) // it was never acknowledged
		}
	}()
	for parts := 0; ; parts++ {
		p, err := m.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return File{}, fileProblem(sendError{err})
		}
		if parts > 16 {
			return File{}, api.Problem{Status: http.StatusBadRequest, Message: "The multipart body has too many parts."}
		}
		switch p.FormName() {
		case "purpose":
			b, err := io.ReadAll(io.LimitReader(p, 64))
			if err != nil {
				return File{}, fileProblem(sendError{err})
			}
			purpose = string(b)
		case "file":
			if have {
				return File{}, api.Problem{Status: http.StatusBadRequest, Param: "file", Message: "Send one 'file' at a time."}
			}
			name := p.FileName()
			if len(name) > 255 || !utf8.ValidString(name) {
				return File{}, api.Problem{Status: http.StatusBadRequest, Param: "file", Message: "The file's name must be UTF-8 of at most 255 bytes."}
			}
			if f, err = v.files.Put(r.Context(), "file-"+newID(), name, "batch", v.store.now()/1000, sentBy{p}); err != nil {
				return File{}, fileProblem(err)
			}
			have = true
		}
	}
	switch {
	case !have:
		return File{}, api.Problem{Status: http.StatusBadRequest, Param: "file", Message: "The part 'file' is missing."}
	case purpose != "batch":
		return File{}, api.Problem{Status: http.StatusBadRequest, Param: "purpose", Message: fmt.Sprintf("'purpose' is %.40q; only \"batch\" is known.", purpose)}
	}
	keep = true
	return f, nil
}

// sentBy marks what keeps a part from being read as the sender's, not the store's.
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
	case errors.As(err, &big), errors.Is(err, ErrFileSize):
		return api.Problem{Status: http.StatusRequestEntityTooLarge, Code: "file_too_large", Param: "file", Message: fmt.Sprintf("A file may have %d bytes: %v.", maxFileBytes, err)}
	case errors.Is(err, ErrNoFile):
		return api.Problem{Status: http.StatusNotFound, Code: "file_not_found", Message: err.Error() + "."}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return api.Problem{Status: http.StatusBadRequest, Message: "The multipart body ends too soon."}
	case errors.As(err, &sent) && errors.Is(err, api.ErrSlowBody):
		return api.Problem{Status: http.StatusRequestTimeout, Code: "body_not_read", Message: "The file was not accepted: " + strings.TrimPrefix(sent.Error(), "api: ") + "."}
	case errors.As(err, &sent):
		return api.Problem{Status: http.StatusBadRequest, Message: "The multipart body cannot be read: " + sent.Error() + "."}
	}
	return problemOf(err)
}

func (v *Service) listFiles(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := maxFiles
	if s := q.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 10000 {
			v.api.WriteError(w, api.Problem{Status: http.StatusBadRequest, Param: "limit", Message: "'limit' must be 1 to 10000."})
			return
		}
		limit = n
	}
	out := struct {
		Object  string `json:"object"`
		Data    []File `json:"data"`
		HasMore bool   `json:"has_more"`
	}{Object: "list", Data: []File{}}
	seen := q.Get("after") == ""
	files, err := v.files.List(r.Context())
	if err != nil {
		v.api.WriteError(w, unreadable("The list of files", err))
		return
	}
	for _, f := range files {
		switch {
		case !seen:
			seen = f.ID == q.Get("after")
		case q.Get("purpose") != "" && f.Purpose != q.Get("purpose"):
		case len(out.Data) == limit:
			out.HasMore = true
		default:
			out.Data = append(out.Data, f)
		}
	}
	v.api.WriteJSON(w, http.StatusOK, out)
}

func (v *Service) getFile(w http.ResponseWriter, r *http.Request) {
	id, rest := pathID(r, "/v1/files/")
	f, err := v.files.Get(r.Context(), id)
	switch {
	case errors.Is(err, ErrNoFile):
		v.api.WriteError(w, notFound("file", id))
	case err != nil:
		v.api.WriteError(w, unreadable("The file", err))
	case rest == "":
		v.api.WriteJSON(w, http.StatusOK, f)
	case rest == "content":
		v.content(r.Context(), w, id)
	default:
		v.api.WriteError(w, noSuchURL(r))
	}
}

func (v *Service) content(ctx context.Context, w http.ResponseWriter, id string) {
	file, f, err := v.files.Open(ctx, id)
	switch {
	case errors.Is(err, ErrNoFile):
		v.api.WriteError(w, notFound("file", id))
		return
	case errors.Is(err, ErrDamaged), errors.Is(err, os.ErrNotExist):
		v.cfg.Logger.Error("jobs: a file cannot be read", "file", id, "error", err)
		v.api.WriteError(w, api.Problem{Status: http.StatusInternalServerError, Code: "file_damaged", Message: "The file cannot be read: " + err.Error() + "."})
		return
	case err != nil:
		v.api.WriteError(w, unreadable("The file", err))
		return
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
				return // the client left
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // cut it, rather than let half a file look whole
		}
	}
}

func (v *Service) deleteFile(w http.ResponseWriter, r *http.Request) {
	id, rest := pathID(r, "/v1/files/")
	if _, err := v.files.Get(r.Context(), id); rest != "" || errors.Is(err, ErrNoFile) {
		v.api.WriteError(w, notFound("file", id))
		return
	} else if err != nil {
		v.api.WriteError(w, unreadable("The file", err))
		return
	}
	if b := v.store.batchOf(id); b != "" {
		v.api.WriteError(w, api.Problem{Status: http.StatusConflict, Code: "file_in_use", Message: "The file is the input of " + b + ", which still runs; cancel that first."})
		return
	}
	if err := v.files.Delete(r.Context(), id); err != nil {
		v.api.WriteError(w, fileProblem(err))
		return
	}
	v.api.WriteJSON(w, http.StatusOK, map[string]any{"id": id, "object": "file", "deleted": true})
}
