package operation

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestPasswordInBackendURLIsFound(t *testing.T) {
	for url, passwords := range map[string][]string{
		"postgres://pulumi:geheim@db:5432/state?sslmode=disable": {"geheim"},
		"postgres://pulumi:ge%40heim@db/state":                   {"ge%40heim", "ge@heim"},
		"postgres://pulumi:ge%zzheim@db/state":                   {"ge%zzheim"},
		"postgres://pulumi:ge/he@im@db/state?x=a@b":              {"ge/he@im"},
		"postgres://pulumi@db/state?x=a:b@c":                     nil,
		"postgres://pulumi:@db/state":                            nil,
		"s3://bucket?endpoint=http://store:9000":                 nil,
		"file:///state":                                          nil,
		"":                                                       nil,
	} {
		NewWithT(t).Expect(backendPasswords(url)).To(Equal(passwords), url)
	}
}

func TestStateInADirectoryIsWrittenWithoutSecondFiles(t *testing.T) {
	for given, wanted := range map[string]string{
		"file:///state":                  "file:///state?metadata=skip",
		"file:///state?":                 "file:///state?metadata=skip",
		"file://~":                       "file://~?metadata=skip",
		"file:///state?no_tmp_dir=false": "file:///state?no_tmp_dir=false&metadata=skip",
		"file:///state?metadata=":        "file:///state?metadata=",
		"file:///state?%zz":              "file:///state?%zz",
		"s3://bucket":                    "s3://bucket",
		"https://api.pulumi.com":         "https://api.pulumi.com",
	} {
		env := map[string]string{backendVariable: given}
		skipBackendMetadata(env)
		NewWithT(t).Expect(env).To(Equal(map[string]string{backendVariable: wanted}), given)
	}
	env := map[string]string{}
	skipBackendMetadata(env)
	NewWithT(t).Expect(env).To(BeEmpty())
}

func TestReasonOfARefusalAfterABlankLineIsPartOfTheMessage(t *testing.T) {
	printed := "error: secrets (code=Unknown): Error making API request.\n\nURL: PUT http://vault/v1/transit/encrypt/pulumi\n" +
		"Code: 403. Errors:\n\n* 1 error occurred:\n\t* permission denied\n\nsomething else\n"
	g := NewWithT(t)
	g.Expect(errorText(printed, &summary{})).To(ContainSubstring("permission denied"))
	g.Expect(errorText(printed, &summary{})).NotTo(ContainSubstring("something else"))
}
