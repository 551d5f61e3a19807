package proto

//go:generate sh -c "cd ../.. && protoc --go_out=. --go_opt=paths=source_relative internal/proto/*.proto"
