// Package otlpreceiver receives traces like an OpenTelemetry collector, over HTTP and gRPC, and keeps them for tests.
package otlpreceiver

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds a request, in bytes.
const maxBody = 16 << 20

// Span is a received span. Failure is the description of its status if the status is an error.
type Span struct {
	Trace, ID, Parent string
	Name, Failure     string
	Start, End        time.Time
	Attributes        map[string]string
}

// Receiver is a running receiver.
type Receiver struct {
	collector.UnimplementedTraceServiceServer

	http     *httptest.Server
	grpc     *grpc.Server
	listener net.Listener

	mu       sync.Mutex
	spans    []Span
	resource map[string]string
}

// Start starts a receiver on loopback.
func Start() (*Receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for traces: %w", err)
	}
	r := &Receiver{listener: listener, grpc: grpc.NewServer(), resource: map[string]string{}}
	collector.RegisterTraceServiceServer(r.grpc, r)
	go func() { _ = r.grpc.Serve(listener) }() // ends with Stop
	routes := http.NewServeMux()
	routes.HandleFunc("POST /v1/traces", r.post)
	r.http = httptest.NewServer(routes)
	return r, nil
}

// Stop stops the receiver.
func (r *Receiver) Stop() {
	r.http.Close()
	r.grpc.Stop()
}

// Endpoint returns the value of OTEL_EXPORTER_OTLP_ENDPOINT for the protocol.
func (r *Receiver) Endpoint(protocol string) string {
	if protocol == "grpc" {
		return "http://" + r.listener.Addr().String()
	}
	return r.http.URL
}

// Spans returns all spans received so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Resource returns the attributes of the programs that sent spans.
func (r *Receiver) Resource() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.resource)
}

func (r *Receiver) post(response http.ResponseWriter, request *http.Request) {
	if err := r.read(request); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	response.Header().Set("Content-Type", "application/x-protobuf")
}

func (r *Receiver) read(request *http.Request) error {
	body := io.Reader(http.MaxBytesReader(nil, request.Body, maxBody))
	if request.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = io.LimitReader(unpacked, maxBody)
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var message collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(content, &message); err != nil {
		return errors.New("this is no request of OTLP")
	}
	_, err = r.Export(request.Context(), &message)
	return err
}

// Export implements the gRPC service of collectors.
func (r *Receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range request.GetResourceSpans() {
		maps.Copy(r.resource, attributes(from.GetResource().GetAttributes()))
		for _, scope := range from.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				r.spans = append(r.spans, spanOf(span))
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func spanOf(span *tracev1.Span) Span {
	result := Span{
		Trace: hex.EncodeToString(span.GetTraceId()), ID: hex.EncodeToString(span.GetSpanId()), Parent: hex.EncodeToString(span.GetParentSpanId()),
		Name: span.GetName(), Start: nanoseconds(span.GetStartTimeUnixNano()), End: nanoseconds(span.GetEndTimeUnixNano()),
		Attributes: attributes(span.GetAttributes()),
	}
	if span.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR {
		result.Failure = span.GetStatus().GetMessage()
	}
	return result
}

func nanoseconds(value uint64) time.Time { return time.Unix(0, int64(value)) }

func attributes(list []*common.KeyValue) map[string]string {
	result := map[string]string{}
	for _, attribute := range list {
		result[attribute.GetKey()] = attribute.GetValue().GetStringValue()
	}
	return result
}
