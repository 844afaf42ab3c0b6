# A static binary on an empty image. Only its stages done by hand are tested (see
# e2e/image_test.go): build with these flags, run as this user with nothing beside it.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN CGO_ENABLED=0 go build -trimpath \
      -ldflags "-s -w -X github.com/walsidecar/walsidecar/sidecar.Version=${VERSION}" \
      -o /walsidecar ./cmd/walsidecar \
 && install -d -o 65532 -g 65532 /data

FROM scratch
COPY --from=build /walsidecar /walsidecar
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
# The default paths (./walsidecar-data/…) lie below the working directory.
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["/walsidecar", "wait-ready", "--timeout", "3s"]
ENTRYPOINT ["/walsidecar"]
CMD ["serve"]
