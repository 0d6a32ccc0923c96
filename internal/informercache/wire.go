package informercache

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// unreadFields are large fields that no code reads from a cache. The transform functions of the caches remove them from small objects, too.
var unreadFields = fields{
	"metadata": {"managedFields": nil, "annotations": {corev1.LastAppliedConfigAnnotation: nil}},
	"program":  nil,              // of a Program
	"status":   {"changes": nil}, // of an Update
}

// NewCache is cache.New with a client whose requests go through a transport as NewTransport returns.
func NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	if options.HTTPClient == nil {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("create the client of a cache: %w", err)
		}
		options.HTTPClient = client
	}
	client := *options.HTTPClient
	client.Transport = NewTransport(cmp.Or(client.Transport, http.DefaultTransport))
	options.HTTPClient = &client
	return cache.New(config, options)
}

// NewTransport returns a transport that shortens the objects in the lists and watches of the API server before they are decoded: decoding
// an object of 1.5 MiB can take 100 times as long as finding its small fields, and all objects of a kind wait for it.
func NewTransport(next http.RoundTripper) http.RoundTripper { return &transport{next} }

type transport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper. It asks for JSON also where the API server could answer with protobuf.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Accept", onlyJSON(request.Header.Get("Accept")))
	response, err := t.next.RoundTrip(request)
	if err != nil || request.Method != http.MethodGet || response.StatusCode != http.StatusOK {
		return response, err
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "application/json" {
		return response, nil
	}
	s := &stream{ReadCloser: response.Body, unread: unreadFields, step: (*stream).begin}
	if request.URL.Query().Has("watch") {
		s.step = (*stream).event
	}
	response.Body, response.ContentLength = s, -1
	response.Header.Del("Content-Length")
	return response, nil
}

// onlyJSON returns the value of a header Accept without the types that the stream does not read, such as protobuf.
func onlyJSON(accepted string) string {
	types := slices.DeleteFunc(strings.Split(accepted, ","), func(one string) bool {
		return !strings.Contains(one, "application/json") && !strings.Contains(one, "*/*")
	})
	return cmp.Or(strings.Join(types, ","), "application/json")
}

// chunk is how much memory a stream takes for what it reads, at first, in bytes.
const chunk = 32 << 10

// stream is the body of a list or of a watch. It reads one object at a time, shortens it, and passes it on.
type stream struct {
	io.ReadCloser
	unread fields
	// step reads the next part of the body into out, and sets the step that follows.
	step func(*stream) error
	// in was read and not passed on yet.
	in  []byte
	out bytes.Buffer
	err error
}

// Read implements io.Reader.
func (s *stream) Read(to []byte) (int, error) {
	for s.out.Len() == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if s.err = s.step(s); s.err != nil {
			// What is left is not complete, which whoever decodes it reports.
			s.out.Write(s.in)
			s.in = nil
		}
	}
	return s.out.Read(to)
}

// event reads an event of a watch.
func (s *stream) event() error {
	d, size, err := s.value()
	if err != nil {
		return err
	}
	for field := range d.members(0) {
		if size > MaxSize && string(field.key) == `"object"` && d.isObject(field.at) {
			s.out.Write(d.text[:field.at])
			d.keepBounded(field.at, s.unread)
			s.out.Write(d.text[field.end:])
			return nil
		}
	}
	s.out.Write(d.text)
	return nil
}

// begin reads the beginning of a list.
func (s *stream) begin() error {
	first, err := s.peek()
	if err != nil {
		return err
	}
	if first != '{' {
		s.step = (*stream).rest
		return nil
	}
	s.step = (*stream).field
	return s.char()
}

// rest passes on what is left.
func (s *stream) rest() error {
	if len(s.in) == 0 {
		return s.fill()
	}
	s.out.Write(s.in)
	s.in = s.in[:0]
	return nil
}

// field reads a field of a list, or what is between two fields.
func (s *stream) field() error {
	next, err := s.peek()
	switch {
	case err != nil:
		return err
	case next == '}':
		s.step = (*stream).rest
		return s.char()
	case next != '"':
		return s.char()
	}
	key, _, err := s.value()
	if err != nil {
		return err
	}
	s.out.Write(key.text)
	if err := s.char(); err != nil {
		return err
	}
	switch next, err = s.peek(); {
	case err != nil:
		return err
	case next == '[' && string(key.text) == `"items"`:
		s.step = (*stream).item
		return s.char()
	}
	value, _, err := s.value()
	if err == nil {
		s.out.Write(value.text)
	}
	return err
}

// item reads an item of a list, or what is between two items.
func (s *stream) item() error {
	switch next, err := s.peek(); {
	case err != nil:
		return err
	case next == ']':
		s.step = (*stream).field
		return s.char()
	case next != '{':
		return s.char()
	}
	d, size, err := s.value()
	switch {
	case err != nil:
		return err
	case size <= MaxSize:
		s.out.Write(d.text)
	default:
		d.keepBounded(0, s.unread)
	}
	return nil
}

// value reads a JSON value and returns it with its size. What is kept of it is written to out.
func (s *stream) value() (*document, int, error) {
	if _, err := s.peek(); err != nil {
		return nil, 0, err
	}
	scanner := newScanner(s.in)
	for !scanner.scan() {
		if err := s.fill(); err != nil {
			return nil, 0, err
		}
		scanner.text = s.in
	}
	if s.in = s.in[scanner.at:]; scanner.at > MaxSize {
		s.in = bytes.Clone(s.in) // the memory of a large object is not kept until the next one
	}
	return scanner.document(&s.out), scanner.size(), nil
}

// char passes the next character on that is not a space.
func (s *stream) char() error {
	char, err := s.peek()
	if err == nil {
		s.out.WriteByte(char)
		s.in = s.in[1:]
	}
	return err
}

// peek returns the next character that is not a space.
func (s *stream) peek() (byte, error) {
	for {
		if s.in = bytes.TrimLeft(s.in, " \t\r\n"); len(s.in) > 0 {
			return s.in[0], nil
		}
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads more of the body. Its error is io.EOF at the end.
func (s *stream) fill() error {
	if len(s.in) == cap(s.in) {
		s.in = slices.Grow(s.in, max(chunk, 3*len(s.in)))
	}
	read, err := s.ReadCloser.Read(s.in[len(s.in):cap(s.in)])
	if s.in = s.in[:len(s.in)+read]; read > 0 {
		return nil
	}
	return err
}
