package pressure

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/ociregistry"
)

// Tarball is a compressed tarball of what is written.
func Tarball(write func(*tar.Writer) error) ([]byte, error) {
	var content bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&content, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	tarball := tar.NewWriter(compressed)
	for _, step := range []func() error{func() error { return write(tarball) }, tarball.Close, compressed.Close} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("write a tarball: %w", err)
		}
	}
	return content.Bytes(), nil
}

// Bomb is a file of 1.1 GiB.
func Bomb(w *tar.Writer) error {
	const size = 1100 << 20
	if err := w.WriteHeader(&tar.Header{Name: "Pulumi.yaml", Size: size, Mode: 0o644}); err != nil {
		return err
	}
	_, err := io.Copy(w, io.LimitReader(zeros{}, size))
	return err
}

// zeros is a reader of them without an end.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TooManyFiles are 120,000 of them.
func TooManyFiles(w *tar.Writer) error { return emptyFiles(w, "file-", 120_000) }

// DeepFiles are 5,000 of them, below 60 directories: Patterns take long to be matched with them.
func DeepFiles(w *tar.Writer) error { return emptyFiles(w, strings.Repeat("d/", 60)+"file-", 5000) }

func emptyFiles(w *tar.Writer, prefix string, count int) error {
	for i := range count {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(prefix, i), Mode: 0o644}); err != nil {
			return err
		}
	}
	return nil
}

// Patterns are as many as a Stack may have, and about as long.
func Patterns() (patterns []string) {
	for i := range 256 {
		patterns = append(patterns, strings.Repeat("**/*/", 200)+fmt.Sprint(i))
	}
	return patterns
}

// PublishArchive publishes the content as it is, as the artifact of an OCIRepository: source-controller copies its layer.
func (t *Tenant) PublishArchive(ctx context.Context, name string, content []byte) error {
	layer := ociregistry.Layer{MediaType: ociregistry.ContentType, Content: content}
	if _, err := t.Registry.Push(ctx, name, "latest", ociregistry.Artifact{Layers: []ociregistry.Layer{layer}}); err != nil {
		return err
	}
	source := &sourcev1.OCIRepository{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name}, Spec: sourcev1.OCIRepositorySpec{
		URL: t.Registry.URL(name), Insecure: true, Interval: metav1.Duration{Duration: time.Hour}, Reference: &sourcev1.OCIRepositoryRef{Tag: "latest"},
		LayerSelector: &sourcev1.OCILayerSelector{MediaType: ociregistry.ContentType, Operation: sourcev1.OCILayerCopy},
	}}
	if err := t.Client.Create(ctx, source); err != nil {
		return fmt.Errorf("create an OCIRepository: %w", err)
	}
	return nil
}

// Archives publishes a bomb, too many files, and files that patterns take long for, and creates Stacks of them.
func (t *Tenant) Archives(ctx context.Context, name string) error {
	for kind, write := range map[string]func(*tar.Writer) error{"bomb": Bomb, "entries": TooManyFiles, "patterns": DeepFiles} {
		content, err := Tarball(write)
		if err != nil {
			return err
		}
		source := name + "-" + kind
		if err := t.PublishArchive(ctx, source, content); err != nil {
			return err
		}
		if err := t.each(ctx, source, 1, func(stack *pulumiv1.Stack, _ int) error {
			stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: sourcev1.OCIRepositoryKind, Name: source}}
			if kind == "patterns" {
				stack.Spec.SourcePaths = Patterns()
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
