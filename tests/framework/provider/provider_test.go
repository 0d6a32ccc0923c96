package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestFileIsThereFromCreateToDelete(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "file")
	properties := func(content string) *structpb.Struct {
		encoded, err := structpb.NewStruct(map[string]any{"file": path, "content": content})
		g.Expect(err).NotTo(HaveOccurred())
		return encoded
	}
	p := newProvider()

	_, err := p.Create(t.Context(), &pulumirpc.CreateRequest{Properties: properties("first"), Preview: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(path).NotTo(BeAnExistingFile())

	_, err = p.Create(t.Context(), &pulumirpc.CreateRequest{Properties: properties("first")})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("first"))

	_, err = p.Update(t.Context(), &pulumirpc.UpdateRequest{News: properties("second")})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("second"))

	for range 2 {
		_, err = p.Delete(t.Context(), &pulumirpc.DeleteRequest{Properties: properties("second")})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(path).NotTo(BeAnExistingFile())
	}
}

func TestReadShowsWhatBecameOfTheFile(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "file")
	inputs, err := structpb.NewStruct(map[string]any{"file": path, "content": "ours"})
	g.Expect(err).NotTo(HaveOccurred())
	p := newProvider()
	read := func() *pulumirpc.ReadResponse {
		response, err := p.Read(t.Context(), &pulumirpc.ReadRequest{
			Id: "1", Inputs: proto.CloneOf(inputs), Properties: proto.CloneOf(inputs),
		})
		g.Expect(err).NotTo(HaveOccurred())
		return response
	}
	for _, content := range []string{"ours", "theirs"} {
		g.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		g.Expect(read().GetId()).To(Equal("1"))
		g.Expect(read().GetInputs().AsMap()).To(HaveKeyWithValue("content", content))
		g.Expect(read().GetProperties().AsMap()).To(HaveKeyWithValue("content", content))
	}
	g.Expect(os.Remove(path)).To(Succeed())
	g.Expect(read().GetId()).To(BeEmpty())
}
